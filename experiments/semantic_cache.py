"""What a semantic cache's threshold costs (S-42 to S-44): right answers served against wrong ones, and two remedies."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import mannwhitneyu
from tqdm import tqdm

from experiments.common import identify, require_positive
from experiments.semantic_common import PairConfig, check_pairs, embed_all, load_readable
from experiments.semantic_figures import threshold_figure
from replication.caches.embedding import Embedder, load_embedder
from replication.caches.gates import LikelihoodJudge, same_content, same_polarity
from replication.caches.semantic import LookUp, SemanticCache
from replication.data.pairs import Pair
from replication.errors import ReplicationError
from replication.model import Model, load_model
from replication.records import RunFolder
from replication.runner import model_source
from replication.stats import median_iqr, paired_difference, wilson

TITLE = "Semantic cache: hit rate and wrong answers by threshold and by kind of question; remedies"
ARTICLE = {  # S-43: the article's pairs and the cosines that it prints
    "paraphrase": ("How do I reset my password?", "How can I reset my password?", 0.961),
    "negation": ("Is the API rate limited?", "Is the API not rate limited?", 0.952),
    "scope": ("Refund policy for annual plans", "Refund policy for monthly plans", 0.887),
}
# S-44: the range of published defaults
PUBLISHED = (0.75, 0.8, 0.85, 0.9, 0.95, 0.97)
GRID = tuple(round(0.5 + 0.01 * i, 2) for i in range(51))
GATES = {"polarity": same_polarity, "content": same_content}
# Remedies get the most permissive published threshold, so that the check and not the threshold decides.
LOOSE = PUBLISHED[0]
WRONG_BUDGETS = (0.01, 0.05)

Row = dict
Passes = Callable[[Row], bool]


@dataclass(frozen=True)
class Config(PairConfig):
    """judge: the causal model that judges pairs and writes the answers that are timed. judged: how many pairs it
    judges. timed: rounds of timing. answer_tokens: length of a generated answer."""

    judge: str = "smollm2-135m"
    judged: int = 600
    timed: int = 5
    answer_tokens: int = 64

    def __post_init__(self):
        require_positive(self, "judged", "timed", "answer_tokens")


def check(config: Config) -> None:
    check_pairs(config)
    model_source(config.judge)


def run(config: Config, folder: RunFolder) -> None:
    """Every pair scored, gated and judged; pairs that a stopped run has done are not judged again."""
    embedder = load_embedder(config.model, config.device)
    loaded = load_readable(config, embedder)
    if len({pair.same for pair in loaded.pairs}) < 2:
        raise ReplicationError(f"{len(loaded.pairs)} pairs are all alike or all different: raise n")
    model = load_model(config.judge, config.dtype, config.device)
    identify(folder, {"embedder": embedder.weights, "judge": model.weights, "data": loaded.provenance})
    _score_article(embedder, folder)
    _score_pairs(config, loaded.pairs, embedder, LikelihoodJudge(model), folder)
    _time(config, loaded.pairs, embedder, model, folder)


def _score_article(embedder: Embedder, folder: RunFolder) -> None:
    done = folder.done(("kind", "pair"))
    for name, (first, second, published) in ARTICLE.items():
        if ("article", name) not in done:
            a, b = embedder.encode([first, second])
            folder.append({"kind": "article", "pair": name, "score": float(a @ b), "published": published})


def _score_pairs(
    config: Config, pairs: list[Pair], embedder: Embedder, judge: LikelihoodJudge, folder: RunFolder
) -> None:
    """score: cosine of the pair. crowd_score, own: cosine of the nearest among all stored questions, and whether that
    is the pair's own one. judge: log odds that one answer fits both."""
    done = folder.done(("kind", "example"))
    if all(("pair", pair.id) in done for pair in pairs):
        return
    stored = embed_all(embedder, [pair.stored for pair in pairs], "stored questions")
    asked = embed_all(embedder, [pair.asked for pair in pairs], "asked questions")
    crowd = SemanticCache(embedder, threshold=-1)
    for pair, vector in zip(pairs, stored, strict=True):
        crowd.store(LookUp(pair.stored, vector), "")
    for number, pair in enumerate(tqdm(pairs, "pairs", unit="pair")):
        if ("pair", pair.id) in done:
            continue
        nearest = crowd.look_up_vector(pair.asked, asked[number])
        record = {
            "category": pair.category,
            "same": pair.same,
            "score": float(stored[number] @ asked[number]),
            "crowd_score": nearest.score,
            "own": nearest.nearest == pair.stored,
            **{name: gate(pair.asked, pair.stored) for name, gate in GATES.items()},
        }
        if number < config.judged:
            record["judge"] = judge.log_odds(pair.asked, pair.stored)
        folder.append({"kind": "pair", "example": pair.id, **record})


def _time(config: Config, pairs: list[Pair], embedder: Embedder, model: Model, folder: RunFolder) -> None:
    """Seconds of one embedding, one judgement and one generated answer, in turn, after a round of warm-up."""
    done = folder.done(("kind", "round"))
    judge = LikelihoodJudge(model)
    for number in tqdm(range(-1, config.timed), "timing", unit="round"):
        if ("timing", number) in done:
            continue
        pair = pairs[number % len(pairs)]
        steps = {
            "embed": lambda pair=pair: embedder.encode([pair.asked]),
            "judge": lambda pair=pair: judge.log_odds(pair.asked, pair.stored),
            "answer": lambda pair=pair: _answer(config, model, pair.asked),
        }
        seconds = {}
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            seconds[name] = time.perf_counter() - begun
        if number >= 0:
            folder.append({"kind": "timing", "round": number, "seconds": seconds})


def _answer(config: Config, model: Model, question: str) -> None:
    ids = model.tensor(model.tokenizer(f"Question: {question}\nAnswer:")["input_ids"])
    length = config.answer_tokens
    model.lm.generate(ids, max_new_tokens=length, min_new_tokens=length, do_sample=False)


def summarise(records: list[dict], config: Config) -> dict:
    """The article's pairs, curves over the threshold, how well a threshold can separate, remedies, and cost.

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


def plot(folder: Path) -> None:
    threshold_figure(folder)
