"""Blending while loading: a thread reads the next layer's stored KV while the model computes this one (paper sec. 5
and 6; A-20, A-21, S-23)."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch

from replication.device import loading_stream, synchronize
from replication.errors import ReplicationError
from replication.fuse import Prefill
from replication.layer_store import KV, DamagedChunk
from replication.layers import wrapped
from replication.methods.base import Method
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.store import ChunkStore
from replication.stored import StoredKV


class Event(NamedTuple):
    """kind: `load` (the loader reads a layer and moves its keys), `wait` (the computation waits for it), `compute`, or
    `request` (all of it, layer 0). begin, end: time.perf_counter."""

    kind: str
    layer: int
    begin: float
    end: float


@dataclass
class Loader(StoredKV):
    """StoredKV whose layers a thread loads in order, within the context of the loader.

    ahead: how many layers may be loaded before they are asked for. 0: none, so that nothing overlaps; 1: the paper's
    two threads; the model's depth: as fast as the device gives them. The names `fetch_kv`, `synchronize` and
    `prefill_layer` are the paper's.
    """

    ahead: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.ahead < 0:
            raise ReplicationError(f"ahead must be at least 0 layers, not {self.ahead}")
        self.trace: list[Event] = []
        self._loaded: dict[int, KV] = {}
        self._next, self._allowed = 0, self.ahead - 1
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._load, name="kv-loader", daemon=True)

    def __enter__(self) -> "Loader":
        if self.pieces:
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.pieces:
            self._thread.join()

    def fetch_kv(self, text: tuple[int, ...], layer: int) -> KV | Literal[-1]:
        """K and V [kv heads, n, head dim] of one layer of the stored chunk with the token ids `text`, as stored; -1
        if the prompt has no such chunk."""
        return next((piece.chunk.layer(layer) for piece in self.pieces if piece.chunk.ids == text), -1)

    def synchronize(self, layer: int) -> None:
        """Wait until the layer is loaded; raises what stopped the loader."""
        with self._changed:
            self._allowed = max(self._allowed, layer)
            self._changed.notify_all()
            self._changed.wait_for(lambda: layer in self._loaded or self._error is not None)
            if self._error is not None:
                raise self._error

    def prefill_layer(self, index: int, forward: Callable, hidden_states: torch.Tensor, *args, **kwargs):
        """Compute one layer, and note when.

        The paper hands over the input, a flag for the check layer, the indices of the HKVD tokens, and the KV. Here
        the hidden states are those of the HKVD tokens already, and the KV is in the cache that the layer updates; the
        check layer comes twice, first for its K and V only.
        """
        begun = time.perf_counter()
        try:
            return forward(hidden_states, *args, **kwargs)
        finally:
            synchronize(self.model.device)
            self.trace.append(Event("compute", index, begun, time.perf_counter()))

    def layer(self, index: int) -> KV:
        """As StoredKV.layer, for each layer once and in rising order; layers that are passed over are dropped."""
        if index < self._next:
            raise ReplicationError(f"layer {index} was passed already: a loader's layers are read once, in order")
        asked = time.perf_counter()
        self.synchronize(index)
        self.trace.append(Event("wait", index, asked, time.perf_counter()))
        with self._changed:
            found = self._loaded[index]
            self._loaded = {layer: kv for layer, kv in self._loaded.items() if layer > index}
            self._next = index + 1
            self._allowed = max(self._allowed, index + self.ahead)
            self._changed.notify_all()
        return found

    @torch.inference_mode()
    def _load(self) -> None:
        """The thread: one layer after the other, each as soon as it is allowed."""
        try:
            with loading_stream(self.model.device) as hand_over:
                for index in range(len(self.model.layers)):
                    with self._changed:
                        self._changed.wait_for(partial(self._may_load, index))
                        if self._closed:
                            return
                    begun = time.perf_counter()
                    found = super().layer(index)
                    hand_over(found)
                    with self._changed:
                        self._loaded[index] = found
                        self.trace.append(Event("load", index, begun, time.perf_counter()))
                        self._changed.notify_all()
        except BaseException as error:  # for the thread that waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_load(self, index: int) -> bool:
        return self._closed or index <= self._allowed


def pipelined_prefill(
    method: Method, model: Model, prompt: ChunkedPrompt, store: ChunkStore, ahead: int = 1
) -> tuple[Prefill, list[Event]]:
    """Method.prefill over a Loader: bit for bit the same cache and logits, and what happened when.

    The report's seconds: lookup, wait (the computation for the loader), fuse (the rest) and ttft, their sum; loader is
    what the thread took meanwhile. A chunk that turns out damaged while it is read is dropped from the store, and the
    request starts again without it, so that no damaged byte is ever used. Errors: ReplicationError for a selector that
    looks at all layers before it chooses.
    """
    if method.selector.needs_truth or method.selector.scouts:
        raise ReplicationError(f"{method.name} looks at all layers at once, so they cannot be loaded one by one")
    begun = time.perf_counter()
    while True:
        pieces = method.source.find(model, prompt, store)
        lookup = time.perf_counter() - begun
        loader = Loader(model, prompt.ids, pieces, method.source.move, ahead=ahead)
        try:
            with loader, wrapped(model.layers, loader.prefill_layer):
                result = method.over(loader, prompt)
        except DamagedChunk as damaged:
            store.drop_damaged(damaged.key, damaged)
            continue
        break
    ended = time.perf_counter()
    ttft = ended - begun
    wait, loading = (sum(e.end - e.begin for e in loader.trace if e.kind == kind) for kind in ("wait", "load"))
    parts = {"lookup": lookup, "wait": wait, "fuse": ttft - lookup - wait, "ttft": ttft, "loader": loading}
    result.report.seconds = parts
    return result, [Event("request", 0, begun, ended), *loader.trace]
