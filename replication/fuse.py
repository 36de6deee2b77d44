"""Prefill over reused KV: every layer runs as the model wrote it, but only on the rows that must be computed.

The model's own forward is called once on the whole prompt. For its duration each decoder layer's `forward` is wrapped:
the wrapper cuts hidden states, position embeddings and mask to the current rows, and the cache that the layer updates
scatters their fresh K and V into the stored ones. At the check layer the fresh K and V of the current rows are read
first, the selector picks from them, and the layer then runs on the picked rows only. A selector that filters gradually
picks again after each later layer, for the next one (paper sec. 4.3).
Nothing here knows a model family.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from replication.device import synchronize
from replication.errors import ReplicationError
from replication.layers import wrapped
from replication.row_attention import Block, block_attention, row_blocks
from replication.selectors.base import KV, Selector, View
from replication.stored import StoredKV


@dataclass
class Report:
    """rows: tokens computed per layer. attended: keys seen by them per layer, summed. tapped: tokens projected to K
    and V for a choice per layer. selected: stored tokens (prompt indices) recomputed in the last layer. reused: tokens
    that came from the store. seconds: load and rotate; a method adds lookup, fuse (the rest) and ttft, their sum.
    scouts: reports of the prefills that a selector needed before it could choose."""

    rows: list[int] = field(default_factory=list)
    attended: list[int] = field(default_factory=list)
    tapped: list[int] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    reused: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    scouts: list["Report"] = field(default_factory=list)


@dataclass
class Prefill:
    """A filled cache, K and V [1, kv heads, tokens, head dim] a layer; the logits [vocabulary] after the last token.

    attending: the context in which the model goes on from the cache, for a method that changes attention itself.
    """

    cache: DynamicCache
    logits: torch.Tensor
    report: Report
    attending: Callable[[], AbstractContextManager] = nullcontext


class _Tapped(Exception):
    """Fresh K and V of the current rows, carried out of a layer before it attends."""


class _FusionCache(Cache):
    """Scatters the fresh rows of each layer into the KV that was stored for it."""

    def __init__(self, tokens: int):
        super().__init__(layers=[])
        self.tokens = tokens
        self.tap = self.compare = False
        self.rows: torch.Tensor | None = None
        self.base: KV | None = None
        self.fresh: KV | None = None
        self.replaced: KV | None = None
        self.filled = DynamicCache()

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if self.tap:
            raise _Tapped(key_states, value_states)
        self.fresh = key_states, value_states
        if self.base is not None:
            if self.compare:
                self.replaced = tuple(t.index_select(2, self.rows) for t in self.base)
            key_states = self.base[0].index_copy_(2, self.rows, key_states)
            value_states = self.base[1].index_copy_(2, self.rows, value_states)
        layer = DynamicLayer()
        layer.lazy_initialization(key_states, value_states)
        layer.keys, layer.values = key_states, value_states
        self.filled.layers.append(layer)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.tokens, 0


class _Fusion:
    """One fused prefill; `run` stands in for every decoder layer's forward."""

    def __init__(self, stored: StoredKV, selector: Selector, truth: DynamicCache | None):
        self.kv, self.selector, self.truth = stored, selector, truth
        device = stored.model.device
        self.depth = len(stored.model.layers)
        self.fresh = ~stored.stored.to(device)
        self.chosen = self.candidates = (stored.stored & ~stored.exact).to(device)
        self.reused = int(self.candidates.sum())
        self.rows = torch.arange(len(stored.ids), device=device)
        self.cache = _FusionCache(len(stored.ids))
        self.report = Report(reused=int(stored.stored.sum()))
        self._cuts: dict[int, tuple] = {}
        self._blocks: list[Block] = []

    def run(self, index: int, forward: Callable, hidden_states: torch.Tensor, *args, **kwargs):
        if index == 0:
            start = self.fresh | self.chosen if self.selector.ratio > 0 else self.fresh
            hidden_states = self._narrow(start, hidden_states)
        base, tapped = None, 0
        if index == self.selector.check_layer and self._keep(index):
            tapped = len(self.rows) if self.selector.taps else 0
            base = self._check(index, lambda: forward(hidden_states, *args, **self._cut(kwargs)))
            hidden_states = self._narrow(self.fresh | self.chosen, hidden_states)
        self.cache.compare = bool(self._later(index))
        # all rows are fresh, and no later choice asks what they replace
        whole = len(self.rows) == self.cache.tokens and not self.cache.compare
        self.cache.base = None if whole else base or self.kv.layer(index)
        self.cache.rows = self.rows
        self.report.rows.append(len(self.rows))
        self.report.attended.append(int((self.rows + 1).sum()))
        self.report.tapped.append(tapped)
        hidden_states = forward(hidden_states, *args, **self._cut(kwargs))
        if self.cache.compare:
            self._choose(index, self._later(index), self.cache.fresh, self.cache.replaced)
            hidden_states = self._narrow(self.fresh | self.chosen, hidden_states)
        # only the last row gets logits; as a tensor of its own, the head's weights are not copied for it
        return hidden_states if index < self.depth - 1 else hidden_states[:, -1:].clone()

    def _keep(self, index: int) -> int | None:
        return self.selector.keep(index, self.depth, self.reused) if self.reused and index < self.depth else None

    def _later(self, index: int) -> int | None:
        """How many tokens are to be chosen, by the KV of this layer, for the next one."""
        return self._keep(index + 1) if index >= self.selector.check_layer else None

    def _check(self, index: int, layer: Callable) -> KV:
        """Choose from the fresh K and V of all current rows; the layer's stored K and V, fresh ones written back."""
        fresh, base = self._tap(layer) if self.selector.taps else None, self.kv.layer(index)
        self._choose(index, self._keep(index), fresh, tuple(t.index_select(2, self.rows) for t in base))
        if self.selector.write_back:
            # the chosen rows are written by the layer itself, which first hands out what they replace
            rest = ~self.chosen[self.rows]
            for target, source in zip(base, fresh, strict=True):
                target.index_copy_(2, self.rows[rest], source[:, :, rest])
        return base

    def _choose(self, index: int, keep: int, fresh: KV | None, stored: KV) -> None:
        """Let the selector pick among the current rows, whose K and V these are, the tokens to go on with."""
        in_play = self.candidates[self.rows].nonzero()[:, 0]
        candidates = self.rows[in_play]
        view = View(
            layer=index,
            candidates=candidates,
            fresh=fresh and tuple(t[0].index_select(1, in_play) for t in fresh),
            stored=tuple(t[0].index_select(1, in_play) for t in stored),
            kv=self.kv,
            truth=self.truth,
        )
        picked = candidates[self.selector.pick(view, min(keep, len(candidates)))].sort().values
        self.chosen = torch.zeros_like(self.candidates)
        self.chosen[picked] = True
        self.report.selected = picked.tolist()

    def _tap(self, layer: Callable) -> KV:
        self.cache.tap = True
        try:
            layer()
        except _Tapped as tapped:
            return tapped.args
        finally:
            self.cache.tap = False
        raise RuntimeError("the layer did not update its cache")

    def _narrow(self, mask: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Go on with those current rows that `mask` [tokens] holds."""
        stay = mask[self.rows]
        if bool(stay.all()):
            return hidden_states
        stay = stay.nonzero()[:, 0]
        self.rows = self.rows[stay]
        self._blocks = row_blocks(self.rows)
        self._cuts = {key: (source, dim, cut.index_select(dim, stay)) for key, (source, dim, cut) in self._cuts.items()}
        return hidden_states.index_select(1, stay)

    def _cut(self, kwargs: dict) -> dict:
        """The arguments that the model gives a layer for all tokens, for the current rows alone."""
        if len(self.rows) == self.cache.tokens:
            return kwargs
        cut = dict(kwargs)
        if cut.get("position_embeddings") is not None:
            cut["position_embeddings"] = tuple(self._once(t, -2, self._rows_of) for t in cut["position_embeddings"])
        if cut.get("position_ids") is not None:
            cut["position_ids"] = self._once(cut["position_ids"], -1, self._rows_of)
        cut["attention_mask"] = self._once(cut.get("attention_mask"), -2, self._mask_of)
        cut["blocks"] = self._blocks
        return cut

    def _once(self, source: torch.Tensor | None, dim: int, make: Callable) -> torch.Tensor:
        """The current rows of `source`, which are along `dim`: made once for all layers, then narrowed with them."""
        if id(source) not in self._cuts:
            self._cuts[id(source)] = (source, dim, make(source, dim))
        return self._cuts[id(source)][2]

    def _rows_of(self, source: torch.Tensor, dim: int) -> torch.Tensor:
        return source.index_select(dim, self.rows)

    def _mask_of(self, mask: torch.Tensor | None, dim: int) -> torch.Tensor:
        """Additive: 0 where a key is seen, -inf elsewhere, the form that kernels turn a mask into."""
        if mask is None:  # causal attention, which a kernel can infer for all rows but not for some
            keys = torch.arange(self.cache.tokens, device=self.rows.device)
            seen = (keys <= self.rows[:, None])[None, None]
        else:
            seen = self._rows_of(mask, dim)
        if seen.dtype != torch.bool:
            return seen
        zeros = torch.zeros(seen.shape, dtype=self.kv.model.dtype, device=seen.device)
        return zeros.masked_fill_(~seen, float("-inf"))


@torch.inference_mode()
def fuse(stored: StoredKV, selector: Selector, truth: DynamicCache | None = None) -> Prefill:
    """Prefill the prompt `stored.ids` over its stored KV, recomputing the tokens that `selector` picks.

    Tokens that are not stored are always computed; stored tokens that are exact (a true prefix) never are. With
    ratio 0 nothing stored is recomputed; with ratio 1 everything is, and the result equals full prefill.
    truth: the full prefill's cache, for an oracle selector.
    """
    model = stored.model
    if selector.check_layer >= len(model.layers):
        raise ReplicationError(f"check layer {selector.check_layer}: the model has layers 0 to {len(model.layers) - 1}")
    model.context.require(len(stored.ids), "shorten the prompt")
    if bool(stored.exact.all()):
        raise ReplicationError("every token is stored, so there is nothing to compute: the question must be fresh")
    fusion = _Fusion(stored, selector, truth)
    with block_attention(model.lm), wrapped(model.layers, fusion.run):
        output = model.lm(input_ids=model.tensor(stored.ids), cache=fusion.cache, use_cache=True, logits_to_keep=1)
    logits = output.logits[0, -1]
    synchronize(model.device)
    fusion.report.seconds = dict(stored.seconds)
    return Prefill(fusion.cache.filled, logits, fusion.report)
