"""The queue: by hand, against a server simulated event by event, and against the formula for M/D/1."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.errors import ReplicationError
from replication.queueing import fifo_seconds, highest_rate, poisson_arrivals

TIMES = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20)


def test_by_hand():
    """The second waits 2 s for the first, the third finds nobody."""
    found = fifo_seconds(np.array([0.0, 1.0, 9.0]), np.array([3.0, 4.0, 2.0]))
    assert found.tolist() == [3.0, 6.0, 2.0]


def served(arrivals, service):
    """One server with an explicit queue, stepping from event to event."""
    waiting, upcoming, ends, free = deque(), deque(enumerate(arrivals)), {}, 0.0
    while waiting or upcoming:
        if not waiting:
            waiting.append(upcoming.popleft())
        number, arrival = waiting.popleft()
        free = max(free, arrival) + service[number]
        while upcoming and upcoming[0][1] <= free:
            waiting.append(upcoming.popleft())
        ends[number] = free
    return [ends[number] - arrival for number, arrival in enumerate(arrivals)]


@given(TIMES)
def test_equals_a_server_stepped_event_by_event(times):
    gaps, service = (np.array(column) for column in zip(*times, strict=True))
    arrivals = gaps.cumsum()
    assert fifo_seconds(arrivals, service) == pytest.approx(served(arrivals.tolist(), service.tolist()), abs=1e-9)


@given(TIMES, st.floats(1, 4))
def test_a_faster_stream_of_the_same_requests_waits_no_less(times, factor):
    gaps, service = (np.array(column) for column in zip(*times, strict=True))
    slow, fast = (fifo_seconds(gaps.cumsum() / f, service) for f in (1.0, factor))
    assert (fast >= slow - 1e-9).all()
    assert (slow >= service - 1e-9).all()


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_mean_wait_is_that_of_m_d_1(load):
    """Poisson arrivals, constant service s: mean wait = load x s / (2 (1 - load)) (Pollaczek-Khinchine)."""
    service = 0.5
    waits = [
        fifo_seconds(poisson_arrivals(load / service, 50_000, seed), np.full(50_000, service)).mean() - service
        for seed in range(8)
    ]
    assert np.mean(waits) == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)


def test_arrivals_are_poisson_and_stretch_with_the_rate():
    arrivals = poisson_arrivals(2.0, 100_000, seed=1)
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(0.5, rel=0.02)
    assert gaps.std() == pytest.approx(0.5, rel=0.02)
    assert poisson_arrivals(4.0, 100_000, seed=1) == pytest.approx(arrivals / 2)


def test_highest_rate_is_where_the_limit_is_met():
    assert highest_rate(lambda rate: rate**2, 2.0, 0.1, 10.0) == pytest.approx(2**0.5)
    assert highest_rate(lambda rate: rate, 50.0, 0.1, 10.0) == pytest.approx(10.0)
    with pytest.raises(ReplicationError, match="exceeds"):
        highest_rate(lambda rate: rate, 0.05, 0.1, 10.0)


def test_a_rate_must_be_positive():
    with pytest.raises(ReplicationError, match="above 0"):
        poisson_arrivals(0, 3)
