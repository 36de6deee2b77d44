"""PromptCache (2311.04934): modules encoded alone at the positions that a schema gives them, and reused only there.

The schema is the earlier prompt: its prefix and passages are the modules, at their positions in it. A later prompt
imports the modules that it names, in whatever order: their keys stay where the schema put them, so to the model they
stand in the schema's order. This is what differs from `full-reuse`, which moves keys to the prompt's order; where the
order is the same, the two are equal.

As the original, but: the question follows the last imported module, not the schema's end, and all positions are shifted
by one constant so that it has its ordinary one (rotary attention sees distances only). Text that no schema has is
computed in its place in the prompt, where the original allows new text only in slots and at the end. A module that
overlaps another imported one, which a schema forbids, is computed as well. Parameters and unions are not modelled.
"""

from dataclasses import dataclass

from replication.chunk import prefill_chunk
from replication.methods.ape import next_to_question
from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.selectors.base import Selector
from replication.store import ChunkStore, chunk_key
from replication.stored import Piece


@dataclass(frozen=True)
class Schema(Chunks):
    """A module has one position for good, that of the first prompt which brought it."""

    @property
    def keeps(self) -> str:
        return "modules of a schema"

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        for segment in earlier.chunks:
            key = _module_key(model, segment.ids)
            if store.get(key) is None:
                context = self._context(model, earlier, segment)
                store.put(key, prefill_chunk(model, segment.ids, context, segment.start))

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        pieces, taken = [], set()
        for segment in prompt.chunks:
            module = store.get(_module_key(model, segment.ids))
            positions = set() if module is None else set(range(module.start, module.start + len(module.ids)))
            if positions and not positions & taken:
                pieces.append(Piece(module, segment.start))
                taken |= positions
        return next_to_question(pieces, prompt)


def _module_key(model: Model, ids: tuple[int, ...]) -> str:
    return chunk_key(f"{model.fingerprint} module", ids, dtype=model.dtype)


METHODS["promptcache"] = Entry(
    lambda ratio: Method("promptcache", Schema(), Selector(ratio=0)),
    "PromptCache: chunks stay at the positions that the first prompt with them, its schema, gave them",
    takes_ratio=False,
)
