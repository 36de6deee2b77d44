"""How far reused KV, and attention over it, are from full prefill's (paper table 1; A-03), and how both are spread."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import rankdata


def delta_kv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The paper's deviation of KV per token [m]: sum of absolute differences of two tensors [kv heads, m, head dim]."""
    return (a.float() - b.float()).abs().sum(dim=(0, 2))


def squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distance per token [m] of two tensors [kv heads, m, head dim], as the authors' code and LMCache use it.

    Rotation leaves it as it is, so keys give the same before and after it.
    """
    return (a.float() - b.float()).square().sum(dim=(0, 2))


def delta_attn(a: torch.Tensor, b: torch.Tensor) -> float:
    """The paper's deviation of attention: L2 norm of the difference of two forward attention matrices
    [heads, last tokens, context], mean over the heads."""
    return torch.linalg.matrix_norm(a.float() - b.float()).mean().item()


def top_shares(deviation: np.ndarray, tops: Sequence[float]) -> np.ndarray:
    """Share of the total that the highest deviations make up: [layers, tops] from [layers, tokens], for each share
    of the tokens in `tops`, whose number is rounded."""
    ranked = -np.sort(-deviation, axis=1)
    total = ranked.sum(axis=1)
    return np.stack([ranked[:, : round(top * ranked.shape[1])].sum(axis=1) / total for top in tops], axis=1)


def rank_correlations(deviation: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation [layers, layers] of the deviations [layers, tokens] of every two layers (A-06)."""
    return np.corrcoef(rankdata(deviation, axis=1))
