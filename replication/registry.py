"""Named collections whose misses name the nearest entry."""

import difflib
from collections.abc import Callable

from replication.errors import ReplicationError


class Registry(dict):
    """Maps a name to an object; an unknown name raises ReplicationError with the nearest known ones."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable:
        def add(thing):
            self[name] = thing
            return thing

        return add

    def __missing__(self, name: str):
        near = difflib.get_close_matches(str(name), self, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(self))}"
        raise ReplicationError(f"unknown {self.kind} '{name}'; {hint}")
