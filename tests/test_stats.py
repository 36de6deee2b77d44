"""Estimates: known answers, degenerate data, coverage."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from replication.errors import ReplicationError
from replication.stats import (
    auc,
    difference_n,
    difference_of_means,
    equivalence,
    equivalence_n,
    equivalence_power,
    holm,
    mean_ci,
    median_iqr,
    paired_difference,
    ratio_of_means,
    wilson,
)


def test_mean_ci_agrees_with_the_normal_interval_on_normal_data():
    values = np.random.default_rng(0).normal(5, 2, 400)
    found = mean_ci(values)
    half = 1.96 * values.std(ddof=1) / 20
    assert found["mean"] == pytest.approx(values.mean())
    assert found["low"] == pytest.approx(values.mean() - half, abs=0.02)
    assert found["high"] == pytest.approx(values.mean() + half, abs=0.02)
    assert found["n"] == 400


def test_percentiles_of_two_values_are_their_exact_resamples():
    """Means of resamples of (0, 1) are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4."""
    assert mean_ci([0, 1]) == {"mean": 0.5, "low": 0.0, "high": 1.0, "n": 2}


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7])
def test_constant_data_has_a_zero_width_interval(value):
    assert mean_ci([value] * 7) == {"mean": value, "low": value, "high": value, "n": 7}


@pytest.mark.parametrize("estimate", [mean_ci, lambda x: ratio_of_means(x, x)])
def test_one_value_has_no_interval(estimate):
    found = estimate([2.0])
    assert found["mean"] in (1.0, 2.0)
    assert (found["low"], found["high"], found["n"]) == (None, None, 1)


def test_no_values_have_no_mean():
    empty = {"mean": None, "low": None, "high": None, "n": 0}
    assert mean_ci([]) == ratio_of_means([], []) == wilson(0, 0) == empty
    assert paired_difference([], []) == {**empty, "p": 1.0}
    assert median_iqr([])["median"] is None
    assert holm([]) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
def test_auc_is_the_mann_whitney_statistic(pairs):
    low, high = zip(*pairs, strict=True)
    found = auc(low, high)
    assert found["mean"] == pytest.approx(mannwhitneyu(high, low).statistic / len(pairs) ** 2)
    assert 0 <= found["low"] <= found["high"] <= 1


def test_auc_of_values_apart_and_of_equal_ones():
    assert auc([1, 2, 3], [4, 5, 6]) == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 3}
    assert auc([4, 4], [4, 4])["mean"] == 0.5
    assert auc([], [])["mean"] is None


def test_seed_decides():
    values = list(np.random.default_rng(1).exponential(size=40))
    assert mean_ci(values, seed=3) == mean_ci(values, seed=3)
    assert mean_ci(values, seed=3) != mean_ci(values, seed=4)


def test_lower_level_is_narrower():
    values = np.random.default_rng(1).normal(size=40)
    wide, narrow = mean_ci(values), mean_ci(values, level=0.5)
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12))
def test_interval_is_finite_and_inside_the_data(values):
    found = mean_ci(values)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert min(values) - slack <= found["low"] <= found["high"] <= max(values) + slack


def test_mean_ci_covers():
    """95 % intervals of 40 skewed values hold the true mean in about 95 of 100 runs, give or take 3 standard errors."""
    rng = np.random.default_rng(2)
    found = [mean_ci(rng.exponential(size=40)) for _ in range(100)]
    assert 87 <= sum(one["low"] <= 1 <= one["high"] for one in found) <= 100


def test_paired_difference_known_answer():
    """All eight differences are positive: the exact two-sided p is 2 / 2^8."""
    b = np.arange(8.0)
    found = paired_difference(b + np.arange(1, 9), b)
    assert found["mean"] == 4.5
    assert found["p"] == pytest.approx(2 / 2**8)
    assert 2.5 < found["low"] < 4.5 < found["high"] < 6.5


def test_equal_pairs_do_not_differ():
    assert paired_difference([1, 2, 3], [1, 2, 3]) == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 3, "p": 1.0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("difference", [[1], [0, 1], [1, 1, 1, 0], [1, -1, 1, -1]])
def test_small_and_tied_pairs_give_a_p(difference):
    p = paired_difference(difference, [0] * len(difference))["p"]
    exact = [abs(sum(signs)) for signs in itertools.product((1, -1), repeat=sum(d != 0 for d in difference))]
    assert 0 < p <= 1
    # Nonzero differences are all of one size here, so the test is an exact sign test.
    assert p == pytest.approx(np.mean([one >= abs(sum(difference)) for one in exact]))


def test_equivalence_known_answer():
    """Differences -1, 0, 1 and 2: mean 0.5, standard error sqrt(5/3)/2, and t(0.95, 3) = 2.35336."""
    found = equivalence([0, 0, 1, 2], [1, 0, 0, 0], margin=3)
    half = 2.353363 * (5 / 3) ** 0.5 / 2
    assert (found["mean"], found["n"]) == (0.5, 4)
    assert (found["low"], found["high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)
    assert found["p"] == pytest.approx(scipy.stats.ttest_1samp([-1, 0, 1, 2], 3, alternative="less").pvalue)
    assert found["decided"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=20), st.floats(0.01, 4))
def test_equivalence_is_shown_exactly_when_the_interval_lies_within_the_margins(values, margin):
    found = equivalence(values, [0.0] * len(values), margin)
    within = -margin < found["low"] and found["high"] < margin
    if min(margin - abs(found["low"]), margin - abs(found["high"]), key=abs) > 1e-9:
        assert (found["p"] < 0.05) == within
    mirrored = equivalence([-v for v in values], [0.0] * len(values), margin)
    assert mirrored["p"] == pytest.approx(found["p"])
    assert (mirrored["low"], mirrored["high"]) == pytest.approx((-found["high"], -found["low"]))


@pytest.mark.parametrize(
    ("differences", "decided", "p"),
    [([0.0] * 5, True, 0.0), ([1.0] * 5, True, 1.0), ([0.0], False, None), ([], False, None)],
)
def test_equivalence_of_differences_without_variance(differences, decided, p):
    found = equivalence(differences, [0.0] * len(differences), margin=0.02)
    assert (found["decided"], found["p"]) == (decided, p)


def test_a_wide_interval_decides_nothing():
    assert not equivalence([0, 1, 0, -1], [0, 0, 0, 0], margin=0.02)["decided"]


@pytest.mark.parametrize(("n", "margin"), [(12, 0.8), (30, 0.6), (60, 0.35)])
def test_equivalence_power_is_how_often_it_is_shown(n, margin):
    """Simulated with standard deviation 1 and true difference 0; within 4 standard errors of 2,000 draws."""
    rng = np.random.default_rng(4)
    draws = rng.normal(size=(2000, n))
    half = scipy.stats.t.ppf(0.95, n - 1) * draws.std(axis=1, ddof=1) / n**0.5
    shown = np.mean(np.abs(draws.mean(axis=1)) + half < margin)
    assert equivalence_power(1.0, n, margin) == pytest.approx(shown, abs=4 * (0.25 / 2000) ** 0.5)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 1), st.sampled_from([0.02, 0.05, 0.1]), st.floats(0.3, 0.95))
def test_equivalence_n_is_the_least_that_suffices(deviation, margin, power):
    n = equivalence_n(deviation, margin, power)
    assert equivalence_power(deviation, n, margin) >= power
    assert n == 2 or equivalence_power(deviation, n - 1, margin) < power


def test_equivalence_n_follows_the_normal_approximation():
    """For large n: ((z(0.95) + z(0.90)) * deviation / margin)^2 pairs give 80 % power."""
    assert equivalence_n(0.3, 0.02) == pytest.approx(((1.6449 + 1.2816) * 15) ** 2, rel=0.005)
    assert equivalence_n(0.0, 0.02) == 2


def test_difference_n_is_that_of_the_tables():
    """A paired t test, two-sided at 5 %, 80 % power: 34 pairs for half a standard deviation, 199 for a fifth."""
    assert difference_n(0.5, 1.0) == difference_n(-1.0, 2.0) == 34
    assert difference_n(0.2, 1.0) == 199
    assert difference_n(0.0, 1.0) is None
    assert difference_n(1.0, 0.0) == 2


def test_ratio_of_means():
    found = ratio_of_means([2, 4, 6, 8], [1, 2, 3, 4])
    assert found == {"mean": 2.0, "low": 2.0, "high": 2.0, "n": 4}
    rng = np.random.default_rng(3)
    b = rng.uniform(1, 10, 60)
    a = 3 * b + rng.normal(0, 0.1, 60)
    pairs = ratio_of_means(a, b)
    assert pairs["low"] < pairs["mean"] < pairs["high"]
    assert pairs["mean"] == pytest.approx(a.mean() / b.mean())
    # Pairs vary together; drawn apart, numerator and denominator would give a far wider interval.
    assert pairs["high"] - pairs["low"] < 0.05
    unpaired = ratio_of_means(rng.permutation(a), b)
    assert unpaired["high"] - unpaired["low"] > 0.3


def test_ratio_with_zero_denominator_has_no_value():
    assert ratio_of_means([1, 2], [0, 0]) == {"mean": None, "low": None, "high": None, "n": 2}
    rare = ratio_of_means([1, 1], [0, 1])
    assert (rare["mean"], rare["low"], rare["high"]) == (2.0, None, None)


def test_difference_of_means_of_two_groups():
    rng = np.random.default_rng(0)
    a, b = rng.normal(3, 1, 400), rng.normal(1, 2, 100)
    result = difference_of_means(a, b)
    assert (result["mean"], result["n"]) == (pytest.approx(a.mean() - b.mean()), 500)
    half = 1.96 * np.sqrt(a.var(ddof=1) / 400 + b.var(ddof=1) / 100)
    assert result["low"] == pytest.approx(result["mean"] - half, abs=0.05)
    assert result["high"] == pytest.approx(result["mean"] + half, abs=0.05)
    assert difference_of_means([], [1.0])["mean"] is None
    assert difference_of_means([2.0], [1.0, 3.0])["low"] is None


def test_median_iqr():
    assert median_iqr([5, 1, 2, 4, 3]) == {"median": 3.0, "low": 2.0, "high": 4.0, "n": 5}
    assert median_iqr([7]) == {"median": 7.0, "low": 7.0, "high": 7.0, "n": 1}


def test_wilson_known_answers():
    found = wilson(8, 10)
    assert found["mean"] == 0.8
    assert (found["low"], found["high"]) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 10)["low"] == 0.0
    assert wilson(0, 10)["high"] == pytest.approx(0.2775328, abs=1e-6)
    with pytest.raises(ReplicationError):
        wilson(11, 10)


def test_holm_known_answer():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_and_keeps_order(p):
    adjusted = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    assert [adjusted[i] for i in np.argsort(p, kind="stable")] == sorted(adjusted)


def test_bad_data_is_refused():
    with pytest.raises(ReplicationError, match="finite"):
        mean_ci([1, float("nan")])
    with pytest.raises(ReplicationError, match="equal length"):
        paired_difference([1, 2], [1])
