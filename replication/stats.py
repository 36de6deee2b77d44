"""Estimates with intervals, deterministic by seed; every result is a JSON-ready dict.

low and high bound the interval; they are None where the data say nothing about one (a single value, or none).
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from replication.errors import ReplicationError

RESAMPLES = 10_000
# Resampled values held at once (about 16 MB), so that memory does not grow with the data.
_BATCH_VALUES = 2_000_000


def mean_ci(values: Sequence[float], seed: int = 0, level: float = 0.95) -> dict:
    """mean, low, high, n: bootstrap (BCa) interval over the values."""
    data = _checked(values)
    n = len(data)
    if n == 0:
        return _estimate(None, None, None, 0)
    if n > 1 and np.ptp(data) == 0:
        # The sum of equal values can round away from them.
        return _estimate(data[0], data[0], data[0], n)
    low, high = _bootstrap((data,), np.mean, seed, level)
    return _estimate(data.mean(), low, high, n)


def paired_difference(a: Sequence[float], b: Sequence[float], seed: int = 0, level: float = 0.95) -> dict:
    """mean, low, high, n of a - b, and p: two-sided Wilcoxon signed-rank test, 1 when no pair differs."""
    first, second = _paired(a, b)
    difference = first - second
    p = float(stats.wilcoxon(difference).pvalue) if np.any(difference) else 1.0
    return {**mean_ci(difference, seed, level), "p": p}


def equivalence(a: Sequence[float], b: Sequence[float], margin: float, alpha: float = 0.05) -> dict:
    """TOST: are paired a and b the same on average, within `margin` on either side?

    mean, low, high (1 - 2 alpha, by t) and n of a - b; p, the larger of the two one-sided tests' p, below alpha exactly
    when the interval lies within the margins; power, the chance to show equality at this n and variance if the true
    difference is 0. decided: whether the data say anything: the interval lies within the margins or outside them.
    """
    first, second = _paired(a, b)
    difference, n = first - second, len(first)
    if n < 2:
        nothing = {"p": None, "power": None, "decided": False}
        return {**_estimate(difference.mean() if n else None, None, None, n), **nothing}
    mean, error = float(difference.mean()), float(difference.std(ddof=1)) / n**0.5
    half = float(stats.t.ppf(1 - alpha, n - 1)) * error
    # without any variance the difference is what it is
    p = float(stats.t.sf((margin - abs(mean)) / error, n - 1)) if error else float(abs(mean) >= margin)
    within, outside = abs(mean) + half < margin, abs(mean) - half > margin
    return {
        **_estimate(mean, mean - half, mean + half, n),
        "p": p,
        "power": equivalence_power(error * n**0.5, n, margin, alpha),
        "decided": within or outside,
    }


def equivalence_power(deviation: float, n: int, margin: float, alpha: float = 0.05) -> float:
    """Chance that `equivalence` shows equality with n pairs whose differences have mean 0 and this standard
    deviation (two noncentral t tests; Phillips 1990)."""
    if deviation == 0:
        return 1.0
    bound, shift = stats.t.ppf(1 - alpha, n - 1), margin * n**0.5 / deviation
    return max(0.0, 2 * float(stats.nct.sf(bound, n - 1, shift)) - 1)


def equivalence_n(deviation: float, margin: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """The least number of pairs, 2 or more, at which `equivalence_power` reaches `power`."""
    return _least_n(lambda n: equivalence_power(deviation, n, margin, alpha) >= power)


def difference_n(mean: float, deviation: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The least number of pairs, 2 or more, at which a two-sided paired t test finds differences with this mean and
    standard deviation with that power; None if the mean is 0."""
    if mean == 0 or deviation == 0:
        return 2 if mean else None
    shift = abs(mean) / deviation
    return _least_n(lambda n: stats.nct.sf(stats.t.ppf(1 - alpha / 2, n - 1), n - 1, shift * n**0.5) >= power)


def _least_n(suffices: Callable[[int], bool]) -> int:
    """The least n from 2 on that suffices; so must all larger ones."""
    low, high = 2, 2
    while not suffices(high):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle + 1
    return low


def difference_of_means(a: Sequence[float], b: Sequence[float], seed: int = 0, level: float = 0.95) -> dict:
    """mean, low, high, n of mean(a) - mean(b), two groups that were drawn apart: bootstrap interval; n: of both."""
    first, second = _checked(a), _checked(b)
    n = len(first) + len(second)
    if min(len(first), len(second)) == 0:
        return _estimate(None, None, None, n)
    bounds = _bootstrap((first, second), _difference, seed, level, paired=False)
    return _estimate(_difference(first, second), *bounds, n)


def ratio_of_means(a: Sequence[float], b: Sequence[float], seed: int = 0, level: float = 0.95) -> dict:
    """mean, low, high, n of mean(a) / mean(b): bootstrap interval over pairs; mean is None when mean(b) is 0."""
    first, second = _paired(a, b)
    n = len(first)
    if n == 0 or second.mean() == 0:
        return _estimate(None, None, None, n)
    low, high = _bootstrap((first, second), _ratio, seed, level)
    return _estimate(first.mean() / second.mean(), low, high, n)


def auc(low: Sequence[float], high: Sequence[float], seed: int = 0, level: float = 0.95) -> dict:
    """mean, low, high, n: how often a value of `high` exceeds one of `low`, ties counting half; the ROC AUC of telling
    the two apart. Bootstrap interval over pairs that were measured together."""
    first, second = _paired(low, high)
    if len(first) == 0:
        return _estimate(None, None, None, 0)
    bounds = _bootstrap((first, second), _exceeds, seed, level)
    return _estimate(_exceeds(first, second), *bounds, len(first))


def median_iqr(values: Sequence[float]) -> dict:
    """median, low, high, n: low and high are the quartiles, linearly interpolated."""
    data = _checked(values)
    if len(data) == 0:
        return {"median": None, "low": None, "high": None, "n": 0}
    low, median, high = (float(quantile) for quantile in np.quantile(data, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "n": len(data)}


def wilson(successes: int, n: int, level: float = 0.95) -> dict:
    """mean, low, high, n: the share of successes with Wilson's score interval."""
    if not 0 <= successes <= n:
        raise ReplicationError(f"{successes} successes of {n} make no share")
    if n == 0:
        return _estimate(None, None, None, 0)
    interval = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    return _estimate(successes / n, interval.low, interval.high, n)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    p = _checked(pvalues)
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted.tolist()


def _ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    return a.mean(axis=axis) / b.mean(axis=axis)


def _difference(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    return a.mean(axis=axis) - b.mean(axis=axis)


def _exceeds(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    a, b = np.moveaxis(a, axis, -1)[..., :, None], np.moveaxis(b, axis, -1)[..., None, :]
    return ((b > a) + 0.5 * (b == a)).mean(axis=(-2, -1))


def _bootstrap(
    data: tuple[np.ndarray, ...], statistic: Callable, seed: int, level: float, paired: bool = True
) -> tuple[float | None, float | None]:
    """Interval of a statistic; paired: the same examples are drawn from every array of `data`, which are as long."""
    if min(map(len, data)) < 2:
        return None, None
    # BCa has no answer when the resampled statistics are all equal or all on one side; percentiles still have.
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            low, high = stats.bootstrap(
                data,
                statistic,
                n_resamples=RESAMPLES,
                batch=max(1, _BATCH_VALUES // max(map(len, data))),
                vectorized=True,
                paired=paired and len(data) > 1,
                confidence_level=level,
                method=method,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite(low) and np.isfinite(high):
            return float(low), float(high)
    return None, None


def _checked(values: Sequence[float]) -> np.ndarray:
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or not np.isfinite(data).all():
        raise ReplicationError("statistics need a flat list of finite numbers; drop or repair the others first")
    return data


def _paired(a: Sequence[float], b: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    first, second = _checked(a), _checked(b)
    if len(first) != len(second):
        raise ReplicationError(f"paired data must be of equal length, not {len(first)} and {len(second)}")
    return first, second


def _estimate(mean: float | None, low: float | None, high: float | None, n: int) -> dict:
    numbers = (None if number is None else float(number) for number in (mean, low, high))
    return {**dict(zip(("mean", "low", "high"), numbers, strict=True)), "n": n}
