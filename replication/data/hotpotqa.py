"""HotpotQA, distractor setting: real two-hop questions over Wikipedia paragraphs (CC BY-SA 4.0).

Read from a local file where a data directory is set, else from the hub. Yes/no questions are dropped: their answer is
no span of a passage. So are rows without both supporting passages or with fewer passages than asked for, so that all
examples have the same number.
"""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.hub import hub_table
from replication.data.local import read_local
from replication.data.wrong_answers import wrong_answers
from replication.errors import ReplicationError
from replication.metrics.answers import normalise

FILE = "hotpotqa_distractor_300.jsonl"
HUB = {"path": "hotpotqa/hotpot_qa", "config": "distractor", "split": "validation"}


@dataclass(frozen=True)
class Row:
    """One question with its context, split into the passages that the answer needs and the others."""

    id: str
    question: str
    answer: str
    supports: list[Passage]
    others: list[Passage]


def hotpotqa(n: int, seed: int, passages: int = 6, data_dir: str | Path | None = None) -> tuple[list[RagExample], dict]:
    """n examples: the two supporting passages and others of the row, in seeded order.

    Raises ReplicationError when the file or the hub cannot be read, or has fewer than n usable rows.
    """
    rows, source = _local_rows(data_dir) if data_dir else _hub_rows()
    spans = [row for row in rows if normalise(row.answer) not in ("yes", "no")]
    usable = [row for row in spans if len(row.supports) == 2 and len(row.others) >= passages - 2]
    if n > len(usable):
        raise ReplicationError(f"hotpotqa has {len(usable)} usable rows with {passages} passages, but n is {n}")
    source["dropped"] = {"yes/no answer": len(rows) - len(spans), "too few passages": len(spans) - len(usable)}
    # The whole set is shuffled, so a larger n extends a smaller one; fillers come from it too, for the same reason.
    chosen = random.Random(f"hotpotqa-{seed}").sample(usable, len(usable))[:n]
    fillers = sorted({row.answer for row in usable})
    return [_example(row, fillers, seed, passages) for row in chosen], source


DATASETS["hotpotqa"] = Dataset(hotpotqa, supports=2)


def _example(row: Row, fillers: list[str], seed: int, count: int) -> RagExample:
    rng = random.Random(f"hotpotqa-{seed}-{row.id}")
    kept = row.supports + rng.sample(row.others, count - len(row.supports))
    rng.shuffle(kept)
    return RagExample(
        id=row.id,
        passages=tuple(kept),
        question=row.question,
        answers=(row.answer,),
        distractors=_distractors(row.answer, [p.title for p in kept], fillers, rng),
        supports=tuple(kept.index(p) for p in row.supports),
    )


def _distractors(gold: str, titles: list[str], fillers: list[str], rng: random.Random) -> tuple[str, ...]:
    """Wrong answers: titles in the context, then answers of other rows.

    A title's disambiguation, as in "Mercury (planet)", is cut: no answer is written so. Titles are often of another
    type than the answer, which makes ranking easier here than on the generated sets.
    """
    names = [re.sub(r" \([^)]*\)$", "", title) for title in titles]
    return wrong_answers((gold,), names + rng.sample(fillers, len(fillers)))


def _local_rows(folder: str | Path) -> tuple[list[dict], dict]:
    """Rows of FILE in a folder; the source is the file's name and hash."""
    content, source = read_local(FILE, folder)
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append(_row(row["_id"], row, row["supporting_facts"], row["context"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicationError(f"{FILE} line {number} is no HotpotQA row: {error!r}") from error
    return rows, source


def _hub_rows() -> tuple[list[dict], dict]:
    """Rows of the hub's data set, its columns brought into the published JSON's shape."""
    table, source = hub_table(**HUB, file=FILE)
    # The hub stores the published JSON's pairs as columns.
    rows = [
        _row(
            row["id"],
            row,
            zip(*(row["supporting_facts"][key] for key in ("title", "sent_id")), strict=True),
            zip(*(row["context"][key] for key in ("title", "sentences")), strict=True),
        )
        for row in table
    ]
    return rows, source


def _row(id: str, row: dict, facts: Iterable, context: Iterable) -> Row:
    """facts: (title, sentence number) pairs; context: (title, sentences) pairs, of which those without text are cut."""
    needed = {title for title, _ in facts}
    context = list(context)
    for text in (row["question"], row["answer"], *(title for title, _ in context)):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
    for _, sentences in context:
        if isinstance(sentences, str):
            raise TypeError(f"{sentences!r} is no list of sentences")
    texts = [Passage(title, " ".join(s.strip() for s in sentences)) for title, sentences in context]
    whole = [p for p in texts if p.text]
    supports, others = [p for p in whole if p.title in needed], [p for p in whole if p.title not in needed]
    return Row(id, row["question"], row["answer"], supports, others)
