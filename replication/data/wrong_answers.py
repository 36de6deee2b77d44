"""Wrong answers to rank the gold one against."""

from collections.abc import Iterable, Sequence

from replication.metrics.answers import normalise

DISTRACTORS = 4


def wrong_answers(golds: Sequence[str], candidates: Iterable[str]) -> tuple[str, ...]:
    """The first DISTRACTORS candidates that differ from each other; none holds a gold answer or is part of one."""
    folded_golds = [f" {normalise(gold)} " for gold in golds]
    found: dict[str, str] = {}
    for text in candidates:
        folded = normalise(text)
        if folded and not any(f" {folded} " in gold or gold in f" {folded} " for gold in folded_golds):
            found.setdefault(folded, text)
        if len(found) == DISTRACTORS:
            break
    return tuple(found.values())
