"""Wrong hits of a real system (S-42): a cache that holds a language model's answers, and the model, are asked the same.

The cache holds the model's greedy answer to the first question of every pair. Each second question goes to the cache at
the loosest published threshold and, when it hits, to the model as well. The label of the pair says whether the served
answer is right: no small model's answer could. What is observed beside it needs no label: whether the served text is
another than the model's own answer, and how much less likely the model finds it behind the second question.
"""

from collections.abc import Sequence

from tqdm import tqdm

from experiments.semantic_common import LOOSE, PUBLISHED
from replication.caches.embedding import Embedder
from replication.caches.semantic import LookUp, SemanticCache
from replication.data.pairs import Pair
from replication.metrics.answers import token_f1
from replication.question_answering import QuestionAnswering
from replication.records import RunFolder
from replication.stats import difference_of_means, mean_ci, paired_difference, wilson

BATCH = 16
# Of a hit. repeat: the very same question was stored. right, wrong: the pair's own first question was the nearest, and
# this is what its label says. unlabelled: another pair's was.
LABELS = ("repeat", "right", "wrong", "unlabelled")


def ask_cache(pairs: Sequence[Pair], embedder: Embedder, model: QuestionAnswering, folder: RunFolder) -> None:
    """A record for each pair. The cache is a file in the folder, so that a stopped run keeps the answers; it goes when
    all pairs are done, because results hold no text of the data."""
    done = folder.done(("kind", "example"))
    if all(("answer", pair.id) in done for pair in pairs):
        return
    file = folder.path / "answers.db"
    cache = SemanticCache(embedder, LOOSE, path=file)
    questions = list(dict.fromkeys(pair.stored for pair in pairs))
    for batch in _batches(questions, "stored answers"):
        _store(cache, model, batch)
    for batch in _batches(pairs, "asked again"):
        if not all(("answer", pair.id) in done for pair in batch):
            for pair, record in zip(batch, _ask(cache, model, batch), strict=True):
                if ("answer", pair.id) not in done:
                    folder.append({"kind": "answer", "example": pair.id, "category": pair.category, **record})
    cache.close()
    for part in folder.path.glob(f"{file.name}*"):
        part.unlink()


def _batches(items: Sequence, what: str) -> tqdm:
    """Always the same ones: in another batch the last digits, and so now and then a greedy answer, can be others."""
    return tqdm([items[at : at + BATCH] for at in range(0, len(items), BATCH)], what, unit="batch")


def _store(cache: SemanticCache, model: QuestionAnswering, questions: Sequence[str]) -> None:
    looked = [cache.look_up(question) for question in questions]
    if any(each.nearest != each.question for each in looked):
        for each, answer in zip(looked, model.answers(questions), strict=True):
            cache.store(each, answer)


def _ask(cache: SemanticCache, model: QuestionAnswering, pairs: Sequence[Pair]) -> list[dict]:
    """score: cosine of the nearest stored question; a hit also has its label and what is observed. nll: nats per token
    of the served and of the fresh answer behind the asked question."""
    looked = [cache.look_up(pair.asked) for pair in pairs]
    asked = [each.question for each in looked if each.answer is not None]
    fresh = iter(model.answers(asked) if asked else ())
    records = []
    for pair, each in zip(pairs, looked, strict=True):
        record = {"score": each.score}
        if each.answer is not None:
            own = next(fresh)
            record |= {
                "label": _label(pair, each),
                "differs": each.answer != own,
                "f1": token_f1(each.answer, [own]),
                "nll_served": model.nll(pair.asked, each.answer),
                "nll_fresh": model.nll(pair.asked, own),
            }
        records.append(record)
    return records


def _label(pair: Pair, looked: LookUp) -> str:
    if looked.nearest == pair.asked:
        return "repeat"
    if looked.nearest != pair.stored:
        return "unlabelled"
    return "right" if pair.same else "wrong"


def summarise_answers(rows: list[dict]) -> dict:
    """Hits at each published threshold, then at the loosest what is observed, by label and by kind of pair.

    wrong_of_hits: of those with a label. wrong_over_right: by how much the model's preference for its own answer, in
    nats per token, is larger on wrong hits than on right ones. Alone it says little: a greedy answer is one that the
    model finds likely, so that almost any other text is less so, also a right one.
    """
    hits = [row for row in rows if "label" in row]
    labelled = {label: [row for row in hits if row["label"] == label] for label in LABELS}
    own = labelled["right"] + labelled["wrong"]
    kinds = sorted({row["category"] for row in own})
    return {
        "n": len(rows),
        "thresholds": {f"{t:g}": _counts([row for row in hits if row["score"] >= t], len(rows)) for t in PUBLISHED},
        "by_label": {label: _observed(found) for label, found in labelled.items()},
        "by_category": {
            kind: {"label": found[0]["label"], **_observed(found)}
            for kind, found in ((kind, [row for row in own if row["category"] == kind]) for kind in kinds)
        },
        "wrong_over_right": difference_of_means(_preferences(labelled["wrong"]), _preferences(labelled["right"])),
    }


def _counts(hits: list[dict], asked: int) -> dict:
    counts = {label: sum(row["label"] == label for row in hits) for label in LABELS}
    return {
        "hit_rate": wilson(len(hits), asked),
        "wrong_of_hits": wilson(counts["wrong"], len(hits) - counts["unlabelled"]),
        "unlabelled": wilson(counts["unlabelled"], len(hits)),
        "counts": counts,
    }


def _observed(rows: list[dict]) -> dict:
    """differs: share whose served text is not the model's own answer. f1: words that the two share. preferred: share
    whose own answer the model finds likelier; preference: by how much, in nats per token, paired."""
    served, fresh = ([row[key] for row in rows] for key in ("nll_served", "nll_fresh"))
    return {
        "differs": wilson(sum(row["differs"] for row in rows), len(rows)),
        "f1": mean_ci([row["f1"] for row in rows]),
        "nll_served": mean_ci(served),
        "nll_fresh": mean_ci(fresh),
        "preferred": wilson(sum(value > 0 for value in _preferences(rows)), len(rows)),
        "preference": paired_difference(served, fresh),
    }


def _preferences(rows: list[dict]) -> list[float]:
    return [row["nll_served"] - row["nll_fresh"] for row in rows]
