"""APE, adaptive parallel encoding (2502.05431): contexts side by side at the same positions, with adjusted attention.

Every passage is prefilled behind the shared prefix, so that all begin at the same position; the question follows the
longest one. Question and answer attend to passages with a temperature and a scale (see `tempered_attention`).

As the original, but: all keys are rotated by one more constant, so that the question has its ordinary position and
decoding goes on at the ordinary ones (rotary attention sees distances only). A passage that is not in the store is
computed in its place and is no context. A sliding window counts tokens of the prompt. T and S are fixed at 0.9, where
the original fits them to a validation set.
"""

from dataclasses import dataclass, replace
from functools import partial

from replication.errors import ReplicationError
from replication.methods.base import METHODS, Attending, Chunks, Entry, Method
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.selectors.base import Selector
from replication.store import ChunkStore
from replication.stored import Piece, StoredKV
from replication.tempered_attention import tempered_attention


@dataclass(frozen=True)
class SideBySide(Chunks):
    """Chunks behind the shared prefix, left at the positions that they were prefilled at, the question next to them."""

    behind_prefix: bool = True

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        return next_to_question(super().find(model, prompt, store), prompt)


def next_to_question(pieces: list[Piece], prompt: ChunkedPrompt) -> list[Piece]:
    """The pieces with their own positions, all shifted by what brings the last one of these before the question."""
    end = max((p.chunk.start + len(p.chunk.ids) for p in pieces), default=0)
    shift = prompt.segments[-1].start - end
    return [replace(p, at=p.chunk.start + shift) for p in pieces]


@dataclass(frozen=True)
class Tempered:
    """Attention to stored passages with these settings. Errors: ReplicationError unless both are above 0."""

    temperature: float = 0.9
    scale: float = 0.9

    def __post_init__(self):
        if not (self.temperature > 0 and self.scale > 0):
            raise ReplicationError(f"temperature {self.temperature} and scale {self.scale} must both be above 0")

    def __call__(self, kv: StoredKV, prompt: ChunkedPrompt) -> Attending:
        contexts = kv.stored.clone()
        contexts[: len(prompt.prefix_ids)] = False
        on_device = contexts.to(kv.model.device)
        return partial(tempered_attention, kv.model.lm, on_device, self.temperature, self.scale)


METHODS["ape"] = Entry(
    lambda ratio: Method("ape", SideBySide(), Selector(ratio=0), Tempered()),
    "APE: passages in parallel at the same positions, attention to them with temperature and scale 0.9",
    takes_ratio=False,
)
