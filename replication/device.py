"""What a GPU needs and a CPU does not: waiting for it before a clock is read, a stream of its own for loading, and host
memory that it can fetch from by itself."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch


def synchronize(device: torch.device) -> None:
    """Wait for what this thread has asked of the device, so that a clock read afterwards covers it. What other threads
    asked for on another stream goes on."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def loading_stream(device: torch.device) -> Iterator[Callable[[Iterable[torch.Tensor]], None]]:
    """Within the context, this thread's work on a GPU begins after all that was asked for before, and then runs beside
    the computation. Gives `hand_over`, to be called with tensors made here before the computation uses them."""
    if device.type != "cuda":
        yield lambda tensors: None
        return
    computing, loading = torch.cuda.default_stream(device), torch.cuda.Stream(device)
    loading.wait_stream(computing)

    def hand_over(tensors: Iterable[torch.Tensor]) -> None:
        # else their memory could be given away while the computation still reads it
        for tensor in tensors:
            tensor.record_stream(computing)

    with torch.cuda.stream(loading):
        yield hand_over


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the host's memory, pinned where there is a GPU; itself, if it is there."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available()).copy_(tensor)
