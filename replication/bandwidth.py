"""How fast this machine moves memory: the bound of whatever reads every weight and every cached K and V (S-03)."""

import time

import torch

from replication.device import synchronize
from replication.model import Model

# Larger than the caches of a CPU, small enough for any machine that runs a model
BYTES = 256 * 2**20


def memory_seconds(device: torch.device) -> dict[str, float]:
    """Seconds to read BYTES (a sum over them) and to read and write BYTES in all (a copy of half of them)."""
    source = torch.ones(BYTES // 4, device=device)
    half = source[: len(source) // 2]
    target = torch.ones_like(half)
    return {"read": _timed(device, source.sum), "copy": _timed(device, lambda: target.copy_(half))}


def _timed(device: torch.device, work) -> float:
    best = float("inf")
    for _ in range(3):  # the first may still map pages
        begun = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best


def weight_bytes(model: Model) -> int:
    """Bytes of weights that a step of a dense model reads: all but an input embedding that is not the head as well."""
    embedding, head = model.lm.get_input_embeddings().weight, model.lm.get_output_embeddings().weight
    unread = 0 if embedding is head else embedding.nbytes
    return sum(p.nbytes for p in model.lm.parameters()) - unread
