"""The proof, at load, that a model's keys can be moved (paper app. A; A-22).

Of each layer, keys are computed at several positions. The layout of rotary pairs under which moved keys equal those of
the new position is kept; a model for which there is none, or whose layers cannot be walked as `fuse` walks them, is
refused with the reason. The model is left as it was.
"""

import copy
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel

from replication.layers import attending_by
from replication.refusals import refused
from replication.rotary import LAYOUTS, KeyRotation, Layout, RotaryCall

KV = tuple[torch.Tensor, torch.Tensor]
_PROBE = "probe"
_ROWS = 7
# what a fused prefill cuts to the current rows
_CUT = ("position_embeddings", "position_ids", "attention_mask")


class _Reached(Exception):
    """The model's forward has come as far as it has to."""


def _attend(*args, **kwargs):
    raise _Reached


AttentionInterface.register(_PROBE, _attend)


class _KeyTap(Cache):
    """Carries K and V out of a layer before it attends."""

    def __init__(self):
        super().__init__(layers=[])

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        raise _Reached(key_states[0], value_states[0])


def prove_rotation(lm: PreTrainedModel, layers: nn.ModuleList) -> KeyRotation:
    """Find each layer's rotation and prove it; ReplicationError when keys cannot be moved exactly."""
    with torch.inference_mode():
        observed = _observe(lm, layers)
        calls = [layer.call for layer in observed]
        longest = min(_longest(lm, call) for call in {id(c): c for c in calls}.values())
        layouts = [_prove(layer, longest) for layer in observed]
    return KeyRotation(calls, layouts, longest)


def _observe(lm: PreTrainedModel, layers: nn.ModuleList) -> list["_Layer"]:
    """Run the model with its layers switched off: how it calls each, and the rotary call behind that."""
    made: list[tuple[object, RotaryCall]] = []
    received: list[tuple[tuple, dict]] = []

    def record(module, args, kwargs, output):
        made.append((_first(output), RotaryCall(module, args, kwargs)))

    def skip(hidden_states, *args, **kwargs):
        others = [*args, *(value for name, value in kwargs.items() if name not in _CUT)]
        if any(isinstance(x, torch.Tensor) and x.shape[:2] == (1, _ROWS) for x in others):
            raise refused(lm, "per-token")
        if kwargs.get("position_embeddings") is None:
            raise refused(lm, "no-angles")
        received.append((args, kwargs))
        if len(received) == len(layers):
            raise _Reached
        return hidden_states

    hooks = [m.register_forward_hook(record, with_kwargs=True) for m in lm.modules()]
    try:
        for layer in layers:
            layer.forward = skip
        ids = torch.arange(_ROWS, device=lm.device)[None]
        lm(input_ids=ids, position_ids=ids, cache=DynamicCache(config=lm.config), use_cache=True)
    except _Reached:
        pass
    except ValueError as error:
        raise refused(lm, "own-cache") from error
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            del layer.forward
    calls = [_call_behind(lm, made, kwargs["position_embeddings"]) for _, kwargs in received]
    return [_Layer(lm, i, layers[i], calls[i], *arguments) for i, arguments in enumerate(received)]


def _call_behind(lm: PreTrainedModel, made: list, embeddings: object) -> RotaryCall:
    for output, call in made:
        if output is _first(embeddings):
            return call
    raise refused(lm, "no-module")


def _first(output: object) -> object:
    return output[0] if isinstance(output, tuple) and output else output


def _longest(lm: PreTrainedModel, call: RotaryCall) -> int:
    """Tokens of the longest prompt, within the model's context, whose angles are those of a short one."""
    limit = lm.config.get_text_config().max_position_embeddings
    # a copy, because some modules remember the longest prompt; on the CPU, where a table's end is an error to catch
    call = replace(call, module=copy.deepcopy(call.module).cpu())

    def angles(tokens: int) -> torch.Tensor:
        """Of the token at position 1 in a prompt of so many."""
        found = call.embeddings(torch.empty(1), torch.tensor([1, tokens - 1]))
        return torch.cat([t[0, 0] for t in (found if isinstance(found, tuple) else (found,))])

    short = angles(2)
    if not torch.equal(angles(limit), short):  # they change once, for all longer prompts alike
        return bisect_left(range(limit), True, key=lambda n: n > 2 and not torch.equal(angles(n), short)) - 1
    with suppress(IndexError):
        if not torch.equal(angles(2 * limit), angles(4 * limit)):
            raise refused(lm, "length")
    return limit


@dataclass(frozen=True)
class _Layer:
    """A decoder layer, the arguments with which the model calls it, and the rotary call behind them."""

    lm: PreTrainedModel
    index: int
    module: nn.Module
    call: RotaryCall
    args: tuple
    kwargs: dict

    def refused(self, kind: str) -> Exception:
        return refused(self.lm, kind, layer=self.index)

    def stopped(self, start: int, cache: Cache, mask: torch.Tensor | None = None) -> _Reached | None:
        """What stops the layer when it runs on the same rows at the positions from `start` on, if anything does."""
        generator = torch.Generator().manual_seed(0)
        size = self.lm.config.get_text_config().hidden_size
        hidden = torch.randn(1, _ROWS, size, generator=generator).to(self.lm.device, self.lm.dtype)
        positions = torch.arange(start, start + _ROWS, device=self.lm.device)
        # the cache is found by its type, because its name differs between models
        own = {k: cache if isinstance(v, Cache) else v for k, v in self.kwargs.items()}
        own |= {"position_embeddings": self.call.embeddings(hidden, positions)}
        own |= {"position_ids": positions[None], "attention_mask": mask}
        try:
            self.module(hidden, *self.args, **own)
        except _Reached as reached:
            return reached
        except Exception as error:  # which one depends on what the layer misses
            raise self.refused("no-plain-kv") from error
        return None

    def kv(self, start: int) -> KV:
        """K and V [kv heads, rows, head dim]."""
        reached = self.stopped(start, _KeyTap())
        if reached is None:
            raise self.refused("no-key")
        return reached.args

    def attends_through_interface(self) -> bool:
        mask = torch.zeros(1, 1, _ROWS, _ROWS, dtype=self.lm.dtype, device=self.lm.device)
        with attending_by(self.lm, _PROBE):
            return self.stopped(0, DynamicCache(), mask) is not None


def _prove(layer: _Layer, longest: int) -> Layout:
    """The layout under which moved keys equal the layer's own keys, near, far and backwards."""
    moves = [(3, 40), (40, 3), (5, longest - _ROWS - 1)]
    pairs = [(layer.kv(a), layer.kv(b), b - a) for a, b in moves]
    if not all(_close(a[1], b[1], delta) for a, b, delta in pairs):
        raise layer.refused("moved-value")
    known = LAYOUTS if isinstance(layer.kwargs["position_embeddings"], tuple) else ()
    for layout in known:
        if all(_agrees(layout, layer.call, a[0], b[0], delta) for a, b, delta in pairs):
            break
    else:
        raise layer.refused("moved-key")
    if not layer.attends_through_interface():
        raise layer.refused("own-attention")
    return layout


def _agrees(layout: Layout, call: RotaryCall, source: torch.Tensor, target: torch.Tensor, delta: int) -> bool:
    """Whether moving the keys `source` by delta gives `target`."""
    moved = source.clone()
    layout(moved, *call.angles(torch.full((moved.shape[1],), delta, device=moved.device), moved.dtype))
    return _close(moved, target, delta)


def _close(a: torch.Tensor, b: torch.Tensor, delta: int) -> bool:
    """Angles are fp32 products, so their error grows with the distance; coarse dtypes round the keys themselves."""
    tolerance = 1e-5 + 3e-7 * abs(delta) if a.dtype == torch.float32 else 3e-2
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
