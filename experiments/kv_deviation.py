"""How KV deviation is spread over the tokens of a layer, and how alike layers rank them (A-05, A-06; paper fig. 7, 8).

Deviation is between full prefill's KV and that of chunks prefilled alone, moved to their places. Layer 0 stands apart:
its K and V do not depend on other tokens, so what differs there is what moving keys costs (A-22).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from experiments.common import RagConfig, load_inputs, require_positive
from experiments.insight_figures import kv_deviation_figure
from experiments.reuse_common import candidates, full_prefill, reused
from replication.fuse import Prefill
from replication.metrics.deviation import delta_kv, rank_correlations, top_shares
from replication.records import RunFolder, jsonable
from replication.stats import mean_ci
from replication.stored import StoredKV

TITLE = "KV deviation: its distribution in each layer, and rank correlation between layers"
TENSORS = ("K", "V")
TOPS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
PAPER_TOP = 0.15
QUANTILES = (0, *(round(0.05 * i, 2) for i in range(1, 20)), 0.99, 1)
# what a record keeps of each number; there are thousands in one
DIGITS = 4


@dataclass(frozen=True)
class Config(RagConfig):
    n: int = 40

    def __post_init__(self):
        require_positive(self, "n", "passages")


def run(config: Config, folder: RunFolder) -> None:
    """Distribution and rank correlations on every example; finished ones are not repeated."""
    inputs = load_inputs(config, folder)
    done = folder.done(("kind", "example"))
    for example, prompt in tqdm(
        list(zip(inputs.examples, inputs.prompts, strict=True)), "KV deviation", unit="example"
    ):
        if ("deviation", example.id) not in done:
            stored, full = reused(inputs.model, prompt), full_prefill(inputs.model, prompt)
            tokens = candidates(stored)
            true, moved = full.cache.layers[0].keys[0], stored.layer(0)[0][0]
            error = ((true - moved)[:, tokens].abs().max() / true.abs().max()).item()
            found = {name: _spread(d) for name, d in zip(TENSORS, _deviations(stored, full, tokens), strict=True)}
            folder.append({"kind": "deviation", "example": example.id, "moved": error, **jsonable(found, DIGITS)})


def _deviations(stored: StoredKV, full: Prefill, tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Deviation of K and of V [layers from 1 on, tokens]."""
    found = ([], [])
    for index, layer in list(enumerate(full.cache.layers))[1:]:
        for rows, true, kept in zip(found, (layer.keys, layer.values), stored.layer(index), strict=True):
            rows.append(delta_kv(true[0][:, tokens], kept[0][:, tokens]))
    return tuple(torch.stack(rows).double().cpu().numpy() for rows in found)


def _spread(deviation: np.ndarray) -> dict:
    """shares: [layers, TOPS] of the total. quantiles: [layers, QUANTILES], in units of the layer's mean. ranks: of each
    layer, Spearman's correlations with the later ones."""
    correlations = rank_correlations(deviation)
    return {
        "shares": top_shares(deviation, TOPS),
        "quantiles": np.quantile(deviation, QUANTILES, axis=1).T / deviation.mean(axis=1, keepdims=True),
        "ranks": [row[i + 1 :] for i, row in enumerate(correlations)],
    }


def summarise(records: list[dict], config: Config) -> dict:
    """For K and V: how concentrated deviation is, per layer and on average, and rank correlations of layers.

    moved: the largest difference of a moved key in layer 0 from the key that full prefill computes there, over the
    largest number in such a key.
    """
    rows = [r for r in records if r["kind"] == "deviation"]
    found = {name: {**_concentration(rows, name), **_ranks(rows, name)} for name in TENSORS}
    return {**found, "moved": max(r["moved"] for r in rows), "levels": QUANTILES, "n": config.n}


def _concentration(rows: list[dict], name: str) -> dict:
    shares = np.array([r[name]["shares"] for r in rows])
    top = shares[:, :, TOPS.index(PAPER_TOP)]
    ratio = top / PAPER_TOP / ((1 - top) / (1 - PAPER_TOP))
    return {
        "top_share": {f"{100 * t:g}": mean_ci(shares[:, :, i].mean(axis=1)) for i, t in enumerate(TOPS)},
        "top_over_rest": mean_ci(ratio.mean(axis=1)),
        "layers": [
            {"top_share": mean_ci(top[:, i]), "top_over_rest": mean_ci(ratio[:, i])} for i in range(top.shape[1])
        ],
        "quantiles": np.mean([r[name]["quantiles"] for r in rows], axis=0),
    }


def _ranks(rows: list[dict], name: str) -> dict:
    """neighbours: mean over the pairs of layers i, i+1; weakest: the one such pair whose mean is lowest; check_layer:
    layer 1, where tokens are chosen, with each later layer, mean over them; matrix: all pairs."""
    matrices = np.array([_symmetric(r[name]["ranks"]) for r in rows])
    neighbours = np.diagonal(matrices, 1, axis1=1, axis2=2)
    weakest = int(neighbours.mean(axis=0).argmin())
    return {
        "neighbours": mean_ci(neighbours.mean(axis=1)),
        "weakest": {"layers": [weakest + 1, weakest + 2], **mean_ci(neighbours[:, weakest])},
        "check_layer": mean_ci(matrices[:, 0, 1:].mean(axis=1)),
        "matrix": matrices.mean(axis=0),
    }


def _symmetric(rows: list[list[float]]) -> np.ndarray:
    matrix = np.eye(len(rows))
    for i, row in enumerate(rows):
        matrix[i, i + 1 :] = matrix[i + 1 :, i] = row
    return matrix


def plot(folder: Path) -> None:
    kv_deviation_figure(folder)
