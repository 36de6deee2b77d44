"""What counts as peak memory."""

import torch

from replication.memory import peak_bytes, resident_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


def added(work) -> int | None:
    """Bytes that `work` adds at its peak: the least of three runs, because what the process does beside it adds too."""
    found = [(resident_bytes(CPU), peak_bytes(CPU, work)) for _ in range(3)]
    return None if found[0][1] is None else min(peak - before for before, peak in found)


def test_a_peak_is_what_was_in_use_at_once():
    """Tensors that follow one another, each freed before the next, are one tensor at a time."""
    peak = added(lambda: [torch.ones(size * MIB // 4).sum() for size in (8, 24, 16, 31, 12)])
    if peak is not None:
        assert 30 * MIB < peak < 45 * MIB


def test_memory_freed_before_does_not_count():
    held = [torch.ones(MIB) for _ in range(20)]
    resident_bytes(CPU)
    del held
    peak = added(lambda: torch.ones(2 * MIB).sum())
    if peak is not None:
        assert 7 * MIB < peak < 20 * MIB
