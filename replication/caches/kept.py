"""One KV cache kept over many prompts: what a prompt shares with the last one is not computed again (S-05, S-06).

Reuse ends at the first token that differs; the cache is cropped there and the rest recomputed, so the result is that of
a prefill from nothing.

>>> from replication.caches.kept import KeptCache
>>> from replication.model import load_model
>>> model = load_model("smollm2-135m")
>>> kept = KeptCache(model)
>>> kept.answer((504, 3575, 282, 4649), 3)[1]
Reuse(prompt=4, reused=0, parted=None)
>>> kept.answer((*kept.ids, 30, 198), 3)[1]  # goes on from what is kept
Reuse(prompt=8, reused=6, parted=None)
>>> kept.answer((504, 3575, 281, 4649), 3)[1]  # its third token was edited
Reuse(prompt=4, reused=2, parted=2)
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

from transformers import Cache, DynamicCache

from replication.caches.request import Decoded, WithCache, decode
from replication.model import Model
from replication.prompt import first_difference


@dataclass(frozen=True)
class Reuse:
    """prompt: its length in tokens. reused: tokens of it that were not computed again. parted: the token at which it
    differs from what was kept, None if it goes on from all of that."""

    prompt: int
    reused: int
    parted: int | None

    @property
    def prefilled(self) -> int:
        return self.prompt - self.reused


class KeptCache:
    """The cache of the last request, and the tokens it holds. make_cache: one that cannot be cropped, as a quantized
    one cannot (user report 35), starts over where a croppable one is cut."""

    def __init__(self, model: Model, make_cache: Callable[[], Cache] = DynamicCache):
        self.model, self._make_cache = model, make_cache
        self._clear()

    @property
    def ids(self) -> tuple[int, ...]:
        return self._decoder.ids

    @property
    def cache(self) -> Cache:
        return self._decoder.cache

    def answer(self, prompt: tuple[int, ...], count: int, eos: int | None = None) -> tuple[Decoded, Reuse]:
        """Decode greedily behind `prompt`; the answer stays in the cache but for its last token."""
        reuse = self._fit(prompt)
        try:
            return decode(self._decoder, prompt[reuse.reused :], count, eos), reuse
        except BaseException:
            self._clear()  # layers that a broken forward did not reach are shorter than the others
            raise

    def copy(self) -> "KeptCache":
        """One that goes its own way: decoding grows a cache in place, so a stored one must not be used itself (S-14,
        user report 33)."""
        other = KeptCache(self.model, self._make_cache)
        other._decoder = WithCache(self.model, copy.deepcopy(self.cache), self.ids)
        return other

    def _clear(self) -> None:
        self._decoder = WithCache(self.model, self._make_cache())

    def _fit(self, prompt: tuple[int, ...]) -> Reuse:
        """Drop what `prompt` does not begin with."""
        held = self.ids
        parted = first_difference(held, prompt)
        common = len(held) if parted is None else parted
        reused = max(0, min(common, len(prompt) - 1))  # the last token is always computed, for its logits
        if reused < len(held):
            if reused and self.cache.is_croppable:
                self.cache.crop(reused - len(held))
                self._decoder.ids = held[:reused]
            else:
                self._clear()
                reused = 0
        return Reuse(len(prompt), reused, None if common == len(held) else common)
