"""MuSiQue as the paper evaluates it: multi-hop questions, each with ten chunks of lower-cased Wikipedia text.

The file is the one that the authors' repository carries (`inputs/musique_s.json`; MuSiQue: CC BY 4.0), and there is no
hub copy of it. Only 103 of its 150 questions have a gold answer in their ten chunks: `RagExample.answerable` tells
them apart, so that results can be given for these alone.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.local import read_local
from replication.data.wrong_answers import wrong_answers
from replication.errors import ReplicationError

FILE = "cacheblend_musique_s.json"
ORIGIN = "inputs/musique_s.json of github.com/YaoJiayi/CacheBlend at commit 55ad026"


def musique(n: int, seed: int, passages: int = 10, data_dir: str | Path | None = None) -> tuple[list[RagExample], dict]:
    """n examples of the paper's MuSiQue file; with fewer passages than ten, those that hold an answer are kept first.

    Raises ReplicationError when the file cannot be read, or has fewer than n rows with that many chunks.
    """
    content, source = read_local(FILE, data_dir, ORIGIN)
    rows = _rows(content)
    usable = [row for row in rows if len(row.passages) >= passages]
    if n > len(usable):
        raise ReplicationError(f"musique has {len(usable)} rows with {passages} passages, but n is {n}")
    chosen = random.Random(f"musique-{seed}").sample(usable, len(usable))[:n]
    fillers = sorted({answer for row in usable for answer in row.answers})
    return [_example(row, fillers, seed, passages) for row in chosen], source


DATASETS["musique"] = Dataset(musique, supports=1)


def _example(row: RagExample, fillers: list[str], seed: int, count: int) -> RagExample:
    """`row` with `count` of its passages in their order, and with wrong answers."""
    rng = random.Random(f"musique-{seed}-{row.id}")
    holders = set(row.holders)
    # a stable order in which more passages extend fewer
    order = sorted(rng.sample(range(len(row.passages)), len(row.passages)), key=lambda k: k not in holders)
    kept = tuple(row.passages[k] for k in sorted(order[:count]))
    wrong = wrong_answers(row.answers, rng.sample(fillers, len(fillers)))
    example = replace(row, passages=kept, distractors=wrong)
    return replace(example, supports=example.holders)


def _rows(content: bytes) -> list[RagExample]:
    """All rows with all their passages, without distractors or supports."""
    try:
        rows = json.loads(content)
        return [
            RagExample(
                id=f"musique-{number}",
                passages=tuple(Passage(ctx["title"], ctx["text"]) for ctx in row["ctxs"]),
                question=row["question"],
                answers=tuple(row["answers"]),
                distractors=(),
                supports=(),
            )
            for number, row in enumerate(rows)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ReplicationError(f"{FILE} is not the paper's MuSiQue file: {error!r}") from error
