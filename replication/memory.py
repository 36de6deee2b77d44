"""Peak memory of a piece of work."""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

# mallopt's name for the size from which memory goes back to the system when freed. glibc starts with this value and
# raises it as it goes, and then a peak would depend on how the heap happens to be cut up.
_MMAP_THRESHOLD = -3
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes(device: torch.device) -> int | None:
    """Bytes in use now: of the GPU's allocator, or the process's resident set; None where the system tells neither."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    with suppress(OSError, AttributeError):  # give freed pages back, or they count as in use; glibc only
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 17)
        libc.malloc_trim(0)
    return _status("VmRSS")


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int | None:
    """Highest use while `work` runs, in the same terms as `resident_bytes`."""
    resident_bytes(device)  # drops what earlier work left behind
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device)
    try:
        _CLEAR.write_text("5")  # resets the high-water mark
    except OSError:
        return None
    work()
    return _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)
