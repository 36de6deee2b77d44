"""Standing in for a model's decoder layers, or for their attention, while its own forward runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from transformers import PreTrainedModel


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


@contextmanager
def attending_by(lm: PreTrainedModel, name: str) -> Iterator[None]:
    """Within the context, the decoder's layers attend by the function that transformers registered as `name`.

    What else the model has, a vision tower for one, attends as before.
    """
    config = lm.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
