"""What a store has of one prompt: pieces of KV, moved to their places and laid out layer by layer."""

import time
from dataclasses import dataclass, field

import torch

from replication.chunk import ChunkKV
from replication.device import synchronize
from replication.model import Model


@dataclass(frozen=True)
class Piece:
    """A stored chunk at its place: its first token is token `target` of the prompt, its keys are rotated for the
    positions from `target` on, or from `at` on where that is given (below 0 too: only distances count)."""

    chunk: ChunkKV
    target: int
    at: int | None = None

    @property
    def position(self) -> int:
        return self.target if self.at is None else self.at

    @property
    def stop(self) -> int:
        return self.target + len(self.chunk.ids)


@dataclass
class StoredKV:
    """Stored KV of a prompt of token ids `ids`, in pieces; `move`: rotate keys to their places, or leave them.

    seconds: time spent loading (copying into place) and rotating, summed over layers. A GPU is waited for before and
    after each, which costs it a little of its TTFT.
    """

    model: Model
    ids: tuple[int, ...]
    pieces: list[Piece]
    move: bool = True
    seconds: dict[str, float] = field(default_factory=lambda: {"load": 0.0, "rotate": 0.0})

    def __post_init__(self):
        self.stored = torch.zeros(len(self.ids), dtype=torch.bool)
        self.exact = torch.zeros(len(self.ids), dtype=torch.bool)
        for piece in self.pieces:
            self.stored[piece.target : piece.stop] = True
            self.exact[piece.target : piece.stop] = self.is_exact(piece)
        self._moved = [p for p in self.pieces if self.move and p.chunk.start != p.position]
        self._angles = self._angles_of_moves()

    def is_exact(self, piece: Piece) -> bool:
        """Whether full prefill would compute the very same KV: same position, and all earlier tokens attended."""
        placed = piece.chunk.start == piece.position == piece.target
        return placed and piece.chunk.context == self.ids[: piece.target]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [1, kv heads, tokens, head dim] of one layer; rows that no piece covers hold no data."""
        synchronize(self.model.device)
        begun = time.perf_counter()
        # each is asked for once, since a chunk may make its tensors when asked
        parts = [(p.target, p.stop, *p.chunk.layer(index)) for p in self.pieces]
        keys, values = (
            like.new_empty((1, like.shape[0], len(self.ids), like.shape[2]), device=self.model.device)
            for like in parts[0][2:]
        )
        for start, stop, chunk_keys, chunk_values in parts:
            keys[0, :, start:stop].copy_(chunk_keys, non_blocking=True)
            values[0, :, start:stop].copy_(chunk_values, non_blocking=True)
        synchronize(self.model.device)
        loaded = time.perf_counter()
        if self._moved:
            self.model.rotation.move(index, keys[0, :, self._span], self._angles)
            synchronize(self.model.device)
        self.seconds["load"] += loaded - begun
        self.seconds["rotate"] += time.perf_counter() - loaded
        return keys, values

    def _angles_of_moves(self):
        """One rotation covers the span from the first moved token to the last; rows in between that stay move by 0."""
        if not self._moved:
            return None
        synchronize(self.model.device)
        begun = time.perf_counter()
        deltas = torch.zeros(len(self.ids), dtype=torch.long, device=self.model.device)
        for piece in self._moved:
            deltas[piece.target : piece.stop] = piece.position - piece.chunk.start
        self._span = slice(min(p.target for p in self._moved), max(p.stop for p in self._moved))
        angles = self.model.rotation.angles(deltas[self._span], self.model.dtype)
        synchronize(self.model.device)
        self.seconds["rotate"] += time.perf_counter() - begun
        return angles
