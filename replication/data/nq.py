"""Natural Questions with k distractor passages: one gold Wikipedia passage of up to 100 words among others'.

From `nq-open-oracle.jsonl.gz` of Lost in the Middle (github.com/nelson-liu/lost-in-the-middle; NQ: CC BY-SA 3.0), or
else from the hub's NQ-open with gold documents, whose test set gives other examples. The distractors are gold passages
of other rows that hold no answer of this one.
"""

import gzip
import json
import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.hub import hub_table
from replication.data.local import read_local
from replication.data.wrong_answers import wrong_answers
from replication.errors import ReplicationError
from replication.metrics.answers import normalise

FILE = "nq-open-oracle.jsonl.gz"
HUB = {"path": "florin-hf/nq_open_gold", "split": "test"}


@dataclass(frozen=True)
class Row:
    """One question with its gold passage."""

    id: str
    question: str
    answers: tuple[str, ...]
    gold: Passage


def nq(n: int, seed: int, passages: int = 5, data_dir: str | Path | None = None) -> tuple[list[RagExample], dict]:
    """n questions of Natural Questions, each with its gold passage and passages - 1 distractors, in seeded order.

    More passages add distractors to the same ones. Raises ReplicationError when neither file nor hub can be read, or
    there are too few rows.
    """
    rows, source = _local_rows(data_dir) if data_dir else _hub_rows()
    if max(n, passages) > len(rows):
        raise ReplicationError(f"nq has {len(rows)} rows, but n is {n} and passages is {passages}")
    chosen = random.Random(f"nq-{seed}").sample(rows, len(rows))[:n]
    return [_example(row, rows, seed, passages) for row in chosen], source


DATASETS["nq"] = Dataset(nq, supports=1)


def _example(row: Row, rows: list[Row], seed: int, count: int) -> RagExample:
    rng = random.Random(f"nq-{seed}-{row.id}")
    order, fillers = rng.sample(rows, len(rows)), [other.answers[0] for other in rng.sample(rows, min(100, len(rows)))]
    others = _others(row, order, count - 1)
    kept = [row.gold, *(other.gold for other in others)]
    # one draw a passage, so that more passages leave the order of the others as it was
    places = {passage: rng.random() for passage in kept}
    kept.sort(key=places.__getitem__)
    answers = [answer for other in others for answer in other.answers]
    return RagExample(
        id=row.id,
        passages=tuple(kept),
        question=row.question,
        answers=row.answers,
        distractors=wrong_answers(row.answers, answers + fillers),
        supports=(kept.index(row.gold),),
    )


def _others(row: Row, candidates: Iterable[Row], count: int) -> list[Row]:
    """The first `count` rows of other articles whose passage holds none of the row's answers."""
    golds = [f" {normalise(answer)} " for answer in row.answers]
    found: list[Row] = []
    articles = {_article(row)}
    for other in candidates:
        if len(found) == count:
            break
        text = f" {normalise(f'{other.gold.title} {other.gold.text}')} "
        if _article(other) not in articles and not any(gold in text for gold in golds):
            articles.add(_article(other))
            found.append(other)
    if len(found) < count:
        raise ReplicationError(f"nq has too few passages for {count} distractors of question {row.id}: use fewer")
    return found


def _article(row: Row) -> str:
    return row.gold.title or row.gold.text


def _local_rows(folder: str | Path) -> tuple[list[Row], dict]:
    packed, source = read_local(FILE, folder)
    try:
        lines = gzip.decompress(packed).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ReplicationError(f"cannot read {FILE}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            (context,) = row["ctxs"]
            rows.append(_row(f"nq-{number}", row, Passage(context["title"], context["text"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ReplicationError(f"{FILE} line {number} is no question with one passage: {error!r}") from error
    return rows, source


def _hub_rows() -> tuple[list[Row], dict]:
    table, source = hub_table(**HUB, file=FILE)
    return [_row(f"nq-{row['example_id']}", row, Passage("", row["text"])) for row in table], source


def _row(id: str, row: dict, gold: Passage) -> Row:
    answers = row["answers"]
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise TypeError(f"{answers!r} is no list of answers")
    return Row(id, row["question"], tuple(answers), gold)
