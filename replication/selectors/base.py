"""Which stored tokens to recompute: the interface that every selector shares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import DynamicCache

from replication.errors import ReplicationError
from replication.prompt import ChunkedPrompt
from replication.registry import Registry
from replication.stored import StoredKV

SELECTORS = Registry("selector")

KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class View:
    """What a selector may look at when it picks by the KV of layer `layer`.

    candidates: prompt indices [m] of the stored tokens still in play. fresh, stored: K and V [kv heads, m, head dim]
    of those tokens, recomputed (None where the selector does not look) and as stored (moved). kv: the stored KV of the
    whole prompt. truth: the full prefill's cache, only for oracles.
    """

    layer: int
    candidates: torch.Tensor
    fresh: KV | None
    stored: KV
    kv: StoredKV
    truth: DynamicCache | None


@dataclass(frozen=True)
class Preview:
    """What a selector may look at before the first layer.

    kv: the stored KV of the whole prompt. truth: the full prefill's cache, only for oracles. scout(kv): prefill of what
    is not stored over stored KV, nothing recomputed; it is counted in the report.
    """

    prompt: ChunkedPrompt
    kv: StoredKV
    truth: DynamicCache | None
    scout: Callable[[StoredKV], None]


@dataclass(frozen=True)
class Selector:
    """Recompute the share `ratio` of the reused tokens, chosen in layer `check_layer`, in all later layers.

    write_back: in the check layer, the fresh K and V of every token replace the stored ones (paper and author code),
    or only those of the chosen tokens do (LMCache). Errors: ReplicationError for a ratio outside 0..1.
    """

    ratio: float = 0.15
    check_layer: int = 1
    write_back: bool = True

    needs_truth: ClassVar[bool] = False
    reads_fresh: ClassVar[bool] = True
    scouts: ClassVar[bool] = False

    def __post_init__(self):
        if not 0 <= self.ratio <= 1:
            raise ReplicationError(f"recompute ratio {self.ratio} is outside 0..1")
        if self.check_layer < 0:
            raise ReplicationError(f"check layer {self.check_layer} is negative: layers count from 0")

    @property
    def taps(self) -> bool:
        """Whether the check layer must project all tokens to K and V before the choice."""
        return self.reads_fresh or self.write_back

    def prepared(self, preview: Preview) -> "Selector":
        """This selector for one prompt, after what it has to do before the first layer."""
        return self

    def keep(self, layer: int, depth: int, reused: int) -> int | None:
        """How many of `reused` tokens are recomputed in `layer` of `depth`, or None where no choice is made.

        In the check layer the choice rests on the layer's own KV; for later layers, on that of the layer before."""
        return count(self.ratio, reused) if layer == self.check_layer else None

    def score(self, view: View) -> torch.Tensor:
        """One number per candidate [m]; the highest are recomputed."""
        raise TypeError(f"{type(self).__name__} scores no tokens")

    def pick(self, view: View, n: int) -> torch.Tensor:
        """Indices into the candidates of the n tokens to recompute."""
        return self.score(view).topk(n).indices


def count(ratio: float, tokens: int) -> int:
    """Tokens that a ratio stands for: rounded, and at least one where the ratio is not zero."""
    return min(tokens, max(1, round(ratio * tokens))) if ratio > 0 else 0
