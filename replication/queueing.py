"""Requests that wait for one server, first come first served: TTFT under load from measured service times (A-12)."""

from collections.abc import Callable

import numpy as np

from replication.errors import ReplicationError


def poisson_arrivals(rate: float, n: int, seed: int = 0) -> np.ndarray:
    """Seconds [n] at which n requests arrive, `rate` a second on average. For one seed, arrivals at another rate are
    the same ones, stretched."""
    if not rate > 0:
        raise ReplicationError(f"an arrival rate must be above 0 requests a second, not {rate:g}")
    return np.random.default_rng(seed).exponential(1.0, n).cumsum() / rate


def fifo_seconds(arrivals: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Seconds [n] from each arrival until its request is served, waiting included. arrivals: rising.

    A request waits for what the one before it had left to do when it came (Lindley's recursion); written with running
    sums, its end is the latest of all (earlier arrival + all service from there on).
    """
    done = service.cumsum()
    return done + np.maximum.accumulate(arrivals - (done - service)) - arrivals


def highest_rate(seconds_at: Callable[[float], float], limit: float, low: float, high: float) -> float:
    """The highest arrival rate in low..high at which `seconds_at(rate)`, which rises with the rate, is within `limit`;
    ReplicationError if even the lowest rate exceeds it."""
    if seconds_at(low) > limit:
        raise ReplicationError(f"even at {low:g} requests a second the time exceeds {limit:g} s")
    for _ in range(40):  # halves the interval below any rounding that shows
        middle = (low + high) / 2
        low, high = (middle, high) if seconds_at(middle) <= limit else (low, middle)
    return low
