"""Standing in for a model's decoder layers while its own forward runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn


@contextmanager
def wrapped(layers: nn.ModuleList, run: Callable) -> Iterator[None]:
    """Within the context, layer i computes run(i, its own forward, hidden_states, *args, **kwargs).

    Contexts nest: the forward that an inner one gets is the outer one's.
    """
    before = [layer.__dict__.get("forward") for layer in layers]
    try:
        for index, layer in enumerate(layers):
            layer.forward = partial(run, index, layer.forward)
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            layer.__dict__.pop("forward", None)
            if forward is not None:
                layer.forward = forward
