"""What counts as peak memory."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from replication.memory import peak_bytes, resident_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


def alone(measure) -> int | None:
    """`measure()` in a new process: an old heap has gaps, and a tensor that fits one leaves it resident when freed."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure).result()


def one_after_another() -> int | None:
    return added(lambda: [torch.ones(size * MIB // 4).sum() for size in (8, 24, 16, 31, 12)])


def after_others_were_freed() -> int | None:
    held = [torch.ones(MIB) for _ in range(20)]
    resident_bytes(CPU)
    del held
    return added(lambda: torch.ones(2 * MIB).sum())


def added(work) -> int | None:
    """Bytes that `work` adds at its peak."""
    before, peak = resident_bytes(CPU), peak_bytes(CPU, work)
    return None if peak is None else peak - before


def test_a_peak_is_what_was_in_use_at_once():
    """Tensors that follow one another, each freed before the next, are one tensor at a time."""
    peak = alone(one_after_another)
    if peak is not None:
        assert 30 * MIB < peak < 45 * MIB


def test_memory_freed_before_does_not_count():
    peak = alone(after_others_were_freed)
    if peak is not None:
        assert 7 * MIB < peak < 20 * MIB
