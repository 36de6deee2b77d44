"""Moving keys to other positions (paper app. A; A-22).

A rotary key at position p is R(p) k, so R(d) turns it into the key at p + d. The angles come from the model's own
rotary module; how they are laid out inside a head is found by trying each layout and keeping the one that
reproduces the layer's own keys. A model that no layout reproduces is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedModel

from replication.errors import ReplicationError

Angles = tuple[torch.Tensor, torch.Tensor]
KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _RotaryCall:
    """One call of a rotary module as the model made it, repeatable for other positions."""

    module: nn.Module
    args: tuple
    kwargs: dict

    def embeddings(self, like: torch.Tensor, positions: torch.Tensor) -> Angles:
        """What the layers receive at `positions` [n]: cos and sin [1, n, rotary dim] in the dtype of `like`."""
        ids = positions[None]
        args = (ids if isinstance(a, torch.Tensor) else a for a in self.args[1:])
        kwargs = {k: ids if k == "position_ids" else v for k, v in self.kwargs.items()}
        return self.module(like, *args, **kwargs)

    def angles(self, deltas: torch.Tensor, dtype: torch.dtype) -> Angles:
        """cos and sin [n, rotary dim] for moves by `deltas` [n], the model's attention scaling removed; made in fp32,
        then rounded to `dtype`, as models do for their own keys."""
        cos, sin = self.embeddings(torch.empty(1, device=deltas.device), deltas.abs())
        scale = (cos[0].square() + sin[0].square()).sqrt()
        return (cos[0] / scale).to(dtype), (sin[0] / scale * deltas.sign()[:, None]).to(dtype)


def _rotate(keys: torch.Tensor, first: slice, second: slice, cos: torch.Tensor, sin: torch.Tensor) -> None:
    old = keys.clone()
    keys[..., first].mul_(cos).addcmul_(old[..., second], sin, value=-1)
    keys[..., second].mul_(cos).addcmul_(old[..., first], sin)


def _halves(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    half = cos.shape[-1] // 2
    _rotate(keys, slice(0, half), slice(half, 2 * half), cos[:, :half], sin[:, :half])


def _pairs(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    half = cos.shape[-1] // 2
    _rotate(keys, slice(0, 2 * half, 2), slice(1, 2 * half, 2), cos[:, :half], sin[:, :half])


def _pairs_repeated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    _rotate(keys, slice(0, cos.shape[-1], 2), slice(1, cos.shape[-1], 2), cos[:, ::2], sin[:, ::2])


def _unrotated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """A layer without rotary embedding: its keys are the same at every position."""


Layout = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
LAYOUTS: tuple[Layout, ...] = (_unrotated, _halves, _pairs, _pairs_repeated)


@dataclass(frozen=True)
class KeyRotation:
    """The proved rotation of each layer's keys."""

    calls: list[_RotaryCall]
    layouts: list[Layout]

    @classmethod
    def proved(cls, lm: PreTrainedModel, layers: nn.ModuleList) -> "KeyRotation":
        """Find each layer's rotation and prove it; ReplicationError when keys cannot be moved exactly."""
        with torch.inference_mode():
            calls, kwargs = _observe(lm, layers)
            layouts = [_prove(lm, i, layer, calls[i], kwargs[i]) for i, layer in enumerate(layers)]
        return cls(calls, layouts)

    def angles(self, deltas: torch.Tensor, dtype: torch.dtype) -> list[Angles]:
        """Per layer, cos and sin [n, rotary dim] for moves of `deltas` [n] positions (negative: to the left) of keys of
        `dtype`."""
        shared = {id(call): call for call in self.calls}
        angles = {key: call.angles(deltas, dtype) for key, call in shared.items()}
        return [angles[id(call)] for call in self.calls]

    def move(self, layer: int, keys: torch.Tensor, angles: list[Angles]) -> None:
        """Move `keys` [heads, n, head dim] of `layer` in place by the deltas that `angles` was made for."""
        self.layouts[layer](keys, *angles[layer])


class _Tapped(Exception):
    """Carries K and V out of a layer before it attends."""


class _KeyTap(Cache):
    def __init__(self):
        super().__init__(layers=[])

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        raise _Tapped(key_states[0], value_states[0])


def _observe(lm: PreTrainedModel, layers: nn.ModuleList) -> tuple[list[_RotaryCall], list[dict]]:
    """Run the model with its layers switched off: the rotary call behind each layer, and the layer's arguments."""
    made: list[tuple[torch.Tensor, _RotaryCall]] = []
    received: list[dict] = []

    def record_rotary(module, args, kwargs, output):
        if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], torch.Tensor):
            made.append((output[0], _RotaryCall(module, args, kwargs)))

    def skip(hidden_states, *args, **kwargs):
        if kwargs.get("position_embeddings") is None:
            raise ReplicationError(
                f"{type(lm).__name__} is refused: its layers receive no rotary position embeddings (absolute or ALiBi "
                "positions), so a key computed at one position cannot be moved to another"
            )
        received.append(kwargs)
        return hidden_states

    hooks = [m.register_forward_hook(record_rotary, with_kwargs=True) for m in lm.modules()]
    try:
        for layer in layers:
            layer.forward = skip
        ids = torch.arange(4, device=lm.device)[None]
        lm(input_ids=ids, position_ids=ids, cache=DynamicCache(), use_cache=True, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            del layer.forward
    calls = [_call_behind(lm, made, kwargs["position_embeddings"]) for kwargs in received]
    return calls, received


def _call_behind(lm: PreTrainedModel, made: list, embeddings: Angles) -> _RotaryCall:
    for cos, call in made:
        if cos is embeddings[0]:
            return call
    raise ReplicationError(f"{type(lm).__name__} is refused: its position embeddings do not come from a module")


def _prove(lm: PreTrainedModel, index: int, layer: nn.Module, call: _RotaryCall, kwargs: dict) -> Layout:
    """The layout under which moved keys equal the layer's own keys, near, far and backwards."""
    limit = lm.config.max_position_embeddings
    n, far = 6, limit - 7
    moves = [(3, 40), (40, 3), (5, far)]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, n, lm.config.hidden_size, generator=generator).to(lm.device, lm.dtype)

    def kv_at(start: int) -> KV:
        positions = torch.arange(start, start + n, device=lm.device)
        # the cache is found by its type, because its name differs between models
        own = {k: _KeyTap() if isinstance(v, Cache) else v for k, v in kwargs.items()}
        own |= {"position_embeddings": call.embeddings(hidden, positions)}
        own |= {"position_ids": positions[None], "attention_mask": None}
        try:
            layer(hidden, **own)
        except _Tapped as tapped:
            return tapped.args
        raise ReplicationError(f"{type(lm).__name__} is refused: layer {index} does not put its keys into the cache")

    for layout in LAYOUTS:
        if all(_agrees(layout, call, kv_at(a), kv_at(b), b - a) for a, b in moves):
            return layout
    raise ReplicationError(
        f"{type(lm).__name__} is refused: in layer {index} a moved key differs from the key computed at the new "
        "position, or a value depends on it (frequencies that depend on the prompt length, or an unknown rotary layout)"
    )


def _agrees(layout: Layout, call: _RotaryCall, source: KV, target: KV, delta: int) -> bool:
    """Whether moving the keys of `source` by delta gives those of `target`, the values being equal."""
    moved = source[0].clone()
    layout(moved, *call.angles(torch.full((moved.shape[1],), delta, device=moved.device), moved.dtype))
    # angles are fp32 products, so their error grows with the distance; coarse dtypes round the keys themselves
    tolerance = 1e-5 + 3e-7 * abs(delta) if moved.dtype == torch.float32 else 3e-2
    return _close(moved, target[0], tolerance) and _close(source[1], target[1], tolerance)


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
