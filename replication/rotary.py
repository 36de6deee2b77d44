"""Moving keys to other positions (paper app. A; A-22).

A rotary key at position p is R(p) k, so R(d) turns it into the key at p + d. The angles come from the model's own
rotary module; how they are laid out inside a head is one of `LAYOUTS`, found at load (see `rotary_proof`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RotaryCall:
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
    """Rotate pairs in place: the elements `first` of each key [heads, n, head dim] with the elements `second`, by the
    angles of cos and sin [n, pairs]."""
    old = keys.clone()
    keys[..., first].mul_(cos).addcmul_(old[..., second], sin, value=-1)
    keys[..., second].mul_(cos).addcmul_(old[..., first], sin)


def _halves(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """An element of the first half of the rotary dims pairs with its like in the second; cos and sin hold both."""
    half = cos.shape[-1] // 2
    _rotate(keys, slice(0, half), slice(half, 2 * half), cos[:, :half], sin[:, :half])


def _pairs(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Neighbours pair; cos and sin are those of all pairs, twice one after the other."""
    half = cos.shape[-1] // 2
    _rotate(keys, slice(0, 2 * half, 2), slice(1, 2 * half, 2), cos[:, :half], sin[:, :half])


def _pairs_repeated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Neighbours pair; cos and sin are those of each pair, twice side by side."""
    _rotate(keys, slice(0, cos.shape[-1], 2), slice(1, cos.shape[-1], 2), cos[:, ::2], sin[:, ::2])


def _halves_given_once(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """cos and sin are those of one half, and the other's are the same."""
    if 2 * cos.shape[-1] <= keys.shape[-1]:
        _halves(keys, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


def _unrotated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """A layer without rotary embedding: its keys are the same at every position."""


Layout = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
LAYOUTS: tuple[Layout, ...] = (
    _unrotated,  # models leave rotary out of some layers
    _halves,  # what transformers' rotary modules are made for
    _pairs,  # the same modules, where the weights are those of paired neighbours
    _pairs_repeated,  # modules made for neighbours
    _halves_given_once,  # modules that make no angle twice
)


@dataclass(frozen=True)
class KeyRotation:
    """The proved rotation of each layer's keys. longest: tokens of the longest prompt whose frequencies are those of
    shorter ones, and so the longest into which keys can be moved."""

    calls: list[RotaryCall]
    layouts: list[Layout]
    longest: int

    def angles(self, deltas: torch.Tensor, dtype: torch.dtype) -> list[Angles]:
        """Per layer, cos and sin [n, rotary dim] for moves of `deltas` [n] positions (negative: to the left) of keys of
        `dtype`."""
        shared = {id(call): call for call in self.calls}
        angles = {key: call.angles(deltas, dtype) for key, call in shared.items()}
        return [angles[id(call)] for call in self.calls]

    def move(self, layer: int, keys: torch.Tensor, angles: list[Angles]) -> None:
        """Move `keys` [heads, n, head dim] of `layer` in place by the deltas that `angles` was made for."""
        self.layouts[layer](keys, *angles[layer])
