"""Cache-Craft's formulas, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.chunk import ChunkKV
from replication.context_impact import Attended, fix_overhead, impact, order_penalty, overlap
from replication.selectors.cachecraft import admission

A, B, C = (1, 2), (3, 4, 5, 6, 7), (8,)
# a chunk of 4 tokens behind A, a separator of one token, and B
CONTEXT = (*A, 9, *B)
ATTENDED = Attended(spans=((0, 2), (3, 8)), inter=(0.8, 1.2), intra=2.0, tokens=(0.2, 0.9, 0.3, 0.6))


def test_impact_by_hand():
    """a = 0.8 / (4 x 2) + 1.2 / (4 x 5) = 0.16 and b = 2 / 16 = 0.125, so CCI = 1 / (1 + exp(-1.28))."""
    assert impact(ATTENDED, 4) == pytest.approx(0.782450, abs=1e-6)
    assert impact(Attended(), 4) == 0.5


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], 0),
        ([C], 0),
        ([A], 0.8 / 2.0),
        ([B, C], 1.2 / 2.0),
        ([A, C, B], 1.0),
        ([B, C, A], 0.0),  # the only pair is reversed
    ],
)
def test_overlap_by_hand(before, expected):
    assert overlap(ATTENDED, CONTEXT, before) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ABC", "ABC", 0),
        ("ABC", "CBA", 1),
        ("ABC", "CAB", 2 / 3),
        ("ABC", "BXAC", 1 / 3),
        ("ABC", "XB", 0),
        ("ABAC", "CA", 1),  # a chunk that stood there twice counts at its first place
    ],
)
def test_order_penalty_by_hand(old, new, expected):
    assert order_penalty(list(old), list(new)) == pytest.approx(expected)


def test_fix_overhead_by_hand():
    assert fix_overhead(0.782450, 0.6, 0.5) == pytest.approx(0.156490, abs=1e-6)
    assert fix_overhead(0.8, 0.0, 2.0) == 1.0


def a_chunk(attended: Attended | None, n: int = 4) -> ChunkKV:
    return ChunkKV(tuple(range(20, 20 + n)), len(CONTEXT), [], [], CONTEXT, attended)


def test_tokens_are_admitted_by_the_attention_that_they_paid_to_earlier_chunks():
    """CFO is 0.78245 x 0.4 with B before it: of 4 tokens, alpha times 1.25192 are recomputed."""
    alphas = admission(a_chunk(ATTENDED), [B])
    assert alphas.tolist() == pytest.approx([3 / 1.25192, 0, 2 / 1.25192, 1 / 1.25192], abs=1e-4)
    assert admission(a_chunk(ATTENDED), [A, B]).min() > 1e5, "nothing is to be fixed"
    assert admission(a_chunk(None), []).tolist() == pytest.approx([0, 0.5, 1, 1.5], abs=1e-4)


@given(st.integers(1, 60), st.floats(0.01, 5), st.data())
def test_an_alpha_admits_as_many_tokens_as_the_formula_says(n, alpha, data):
    paid = data.draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n))
    attended = Attended(((0, 2), (3, 8)), (sum(paid) / 3, sum(paid) * 2 / 3), n - sum(paid) + 0.5, tuple(paid))
    share = fix_overhead(impact(attended, n), overlap(attended, CONTEXT, [A]), alpha)
    if abs(share * n - round(share * n)) > 1e-4:  # on a border, rounding decides
        admitted = admission(a_chunk(attended, n), [A]) < alpha
        assert int(admitted.sum()) == min(n, math.ceil(share * n))
