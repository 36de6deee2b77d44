"""The summary of `semantic_cache`."""

from collections.abc import Callable

import numpy as np
from scipy.stats import mannwhitneyu

from experiments.semantic_answers import summarise_answers
from experiments.semantic_common import GATES, LOOSE, PUBLISHED
from replication.stats import median_iqr, paired_difference, wilson

GRID = tuple(round(0.5 + 0.01 * i, 2) for i in range(51))
WRONG_BUDGETS = (0.01, 0.05)

Row = dict
Passes = Callable[[Row], bool]


def summarise(records: list[dict], config) -> dict:
    """The article's pairs, curves over the threshold, how well a threshold can separate, remedies, what a cache of a
    language model's answers serves, and cost.

    served: share of the pairs with one answer that are served it. wrong: share of the others that are served a wrong
    one. hit_rate: of all pairs. wrong_of_hits: share of what is served that is wrong, for this set's mix.
    """
    rows = [r for r in records if r["kind"] == "pair"]
    gates = {"plain": lambda row: True, **{name: lambda row, name=name: row[name] for name in GATES}}
    curves = {
        name: {f"{t:g}": _served(rows, lambda row, t=t, gate=gate: row["score"] >= t and gate(row)) for t in GRID}
        for name, gate in gates.items()
    }
    return {
        "article": _article(records),
        "curves": curves,
        "by_category": {f"{t:g}": _by_category(rows, t) for t in PUBLISHED},
        "separation": _separation(rows),
        "crowd": _crowd(rows),
        "remedies": _remedies(rows),
        "judge_curve": _judge_curve([r for r in rows if "judge" in r]),
        "real": summarise_answers([r for r in records if r["kind"] == "answer"]),
        "cost": _cost(records, curves["plain"]),
        "n": {"pairs": len(rows), "same": sum(r["same"] for r in rows)},
    }


def _served(rows: list[Row], passes: Passes) -> dict:
    hits = [row for row in rows if passes(row)]
    right = sum(row["same"] for row in hits)
    same = sum(row["same"] for row in rows)
    return {
        "served": wilson(right, same),
        "wrong": wilson(len(hits) - right, len(rows) - same),
        "hit_rate": wilson(len(hits), len(rows)),
        "wrong_of_hits": wilson(len(hits) - right, len(hits)),
    }


def _by_category(rows: list[Row], threshold: float) -> dict:
    groups = {category: [r for r in rows if r["category"] == category] for category in sorted(_categories(rows))}
    return {
        category: {"hits": wilson(sum(r["score"] >= threshold for r in group), len(group)), "same": group[0]["same"]}
        for category, group in groups.items()
    }


def _categories(rows: list[Row]) -> set[str]:
    return {row["category"] for row in rows}


def _article(records: list[dict]) -> dict:
    rows = {r["pair"]: r for r in records if r["kind"] == "article"}
    found = {n: {k: r[k] for k in ("score", "published")} for n, r in rows.items()}
    return {
        "pairs": found,
        "largest_difference": max(abs(r["score"] - r["published"]) for r in rows.values()),
        "paraphrase_minus_negation": rows["paraphrase"]["score"] - rows["negation"]["score"],
    }


def _separation(rows: list[Row]) -> dict:
    """auc: chance that a pair with one answer scores above one without. best: the lowest threshold, of all that can be
    set, whose wrong share keeps the budget on these very pairs, which flatters it, and what it still serves."""
    same, other = ([r["score"] for r in rows if r["same"] is label] for label in (True, False))
    auc = mannwhitneyu(same, other).statistic / (len(same) * len(other))
    best = {}
    for budget in WRONG_BUDGETS:
        allowed = int(budget * len(other))
        # just above the first score that is one wrong answer too many
        threshold = float(np.nextafter(sorted(other)[-1 - allowed], 2))
        best[f"{budget:g}"] = {"threshold": threshold, **_served(rows, lambda r, t=threshold: r["score"] >= t)}
    return {"auc": float(auc), "best": best}


def _crowd(rows: list[Row]) -> dict:
    """With all stored questions in one cache: share of the pairs with one answer whose nearest question is another
    than the pair's own, and share of all look-ups that a published threshold lets that one answer."""
    same = [r for r in rows if r["same"]]
    return {
        "nearest_is_another": wilson(sum(not r["own"] for r in same), len(same)),
        "served_another": {
            f"{t:g}": wilson(sum(r["crowd_score"] >= t and not r["own"] for r in rows), len(rows)) for t in PUBLISHED
        },
    }


def _remedies(rows: list[Row]) -> dict:
    """Each check behind the loosest published threshold, against the plain threshold that serves at least as many right
    answers: what both serve, and the paired difference in wrong answers, check - plain."""
    found = {name: _at_equal_hit_rate(rows, lambda r, n=name: r["score"] >= LOOSE and r[n]) for name in GATES}
    judged = [r for r in rows if "judge" in r]
    level = sum(r["same"] and r["score"] >= LOOSE and r["polarity"] for r in judged)
    odds = sorted((r["judge"] for r in judged if r["same"] and r["score"] >= LOOSE), reverse=True)
    if 0 < level <= len(odds):
        cutoff = odds[level - 1]  # serves as many as the polarity gate
        check = _at_equal_hit_rate(judged, lambda r: r["score"] >= LOOSE and r["judge"] >= cutoff)
        found["judge"] = {"cutoff": cutoff, **check}
    return found


def _at_equal_hit_rate(rows: list[Row], passes: Passes) -> dict | None:
    level = sum(r["same"] and passes(r) for r in rows)
    if level == 0:
        return None
    threshold = sorted((r["score"] for r in rows if r["same"]), reverse=True)[level - 1]
    other = [r for r in rows if not r["same"]]
    wrong = [float(passes(r)) for r in other], [float(r["score"] >= threshold) for r in other]
    return {
        "check": _served(rows, passes),
        "plain": {"threshold": threshold, **_served(rows, lambda r: r["score"] >= threshold)},
        "wrong_difference": paired_difference(*wrong),
    }


def _judge_curve(rows: list[Row]) -> list[dict]:
    """What the judge serves behind the loosest threshold, from all to none of what that lets pass."""
    odds = np.quantile([r["judge"] for r in rows], np.linspace(0, 1, 21)) if rows else []
    return [{"cutoff": float(c), **_served(rows, lambda r, c=c: r["score"] >= LOOSE and r["judge"] >= c)} for c in odds]


def _cost(records: list[dict], curve: dict) -> dict:
    """Seconds, and in units of a generated answer: what a request costs on average at each published threshold if the
    traffic were this set's pairs, and the hit rate from which the embeddings pay."""
    timings = [r["seconds"] for r in records if r["kind"] == "timing"]
    seconds = {step: median_iqr([t[step] for t in timings]) for step in ("embed", "judge", "answer")}
    embedding = seconds["embed"]["median"] / seconds["answer"]["median"]
    return {
        "seconds": seconds,
        "break_even_hit_rate": embedding,
        "per_request": {f"{t:g}": embedding + 1 - curve[f"{t:g}"]["hit_rate"]["mean"] for t in PUBLISHED},
    }
