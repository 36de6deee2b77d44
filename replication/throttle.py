"""A token bucket that makes any device as slow as another one (A-16)."""

import threading
import time

from replication.errors import ReplicationError


class TokenBucket:
    """Lets `bytes_per_s` bytes pass. It saves up no tokens while idle, as a disk does not; but where a sleep lasted too
    long, the next one is shorter.

    Errors: ReplicationError for a rate that is not above 0.
    """

    def __init__(self, bytes_per_s: float):
        if not bytes_per_s > 0:
            raise ReplicationError(f"a device's throughput must be above 0 bytes/s, not {bytes_per_s:g}")
        self.bytes_per_s = bytes_per_s
        self._free = self._overslept = 0.0
        self._lock = threading.Lock()

    def take(self, nbytes: int, begun: float) -> None:
        """Return once the device would have delivered `nbytes` that were asked for at `begun` (time.perf_counter); it
        serves one taker at a time."""
        with self._lock:
            due = max(begun - self._overslept, self._free) + nbytes / self.bytes_per_s
            early = due - time.perf_counter()
            if early > 0:
                time.sleep(early)
            self._overslept = time.perf_counter() - due if early > 0 else 0.0
            self._free = due
