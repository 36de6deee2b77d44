"""SAMSum as the paper uses it: a chat to sum up, behind chats that are given with their summaries (CC BY-NC-ND 4.0).

Each worked example, a dialogue with its summary, is one chunk, and the dialogue to sum up is the question (sec. 7.1).
The examples come from the same test split, from other rows.
"""

import csv
import io
import random
from pathlib import Path

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.hub import hub_table
from replication.data.local import read_local
from replication.errors import ReplicationError
from replication.task import DIALOGUE_SUMMARY

FILE = "samsum_test.csv"
HUB = {"path": "knkarthick/samsum", "split": "test"}
FIELDS = ("id", "dialogue", "summary")


def samsum(n: int, seed: int, passages: int = 6, data_dir: str | Path | None = None) -> tuple[list[RagExample], dict]:
    """n dialogues to sum up, each behind `passages` others with their summaries.

    Raises ReplicationError when neither file nor hub can be read, or has too few rows.
    """
    rows, source = _local_rows(data_dir) if data_dir else _hub_rows()
    if max(n, passages + 1) > len(rows):
        raise ReplicationError(f"samsum has {len(rows)} rows, but n is {n} and passages is {passages}")
    chosen = random.Random(f"samsum-{seed}").sample(rows, len(rows))[:n]
    return [_example(row, rows, seed, passages) for row in chosen], source


DATASETS["samsum"] = Dataset(samsum, supports=1, task=DIALOGUE_SUMMARY)


def _example(row: dict, rows: list[dict], seed: int, count: int) -> RagExample:
    rng = random.Random(f"samsum-{seed}-{row['id']}")
    shots = [other for other in rng.sample(rows, len(rows)) if other["id"] != row["id"]][:count]
    texts = [f"{shot['dialogue']}\n{DIALOGUE_SUMMARY.cue} {shot['summary']}" for shot in shots]
    return RagExample(
        id=f"samsum-{row['id']}",
        passages=tuple(Passage("", text) for text in texts),
        question=row["dialogue"],
        answers=(row["summary"],),
        distractors=(),
        supports=(),
    )


def _local_rows(folder: str | Path) -> tuple[list[dict], dict]:
    content, source = read_local(FILE, folder)
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ReplicationError(f"{FILE} is no CSV file: {error}") from error
    return [_row(row, FILE) for row in rows], source


def _hub_rows() -> tuple[list[dict], dict]:
    table, source = hub_table(**HUB, file=FILE)
    return [_row(row, HUB["path"]) for row in table], source


def _row(row: dict, origin: str) -> dict:
    """The fields on unix lines, the summary on one."""
    if not all(isinstance(row.get(field), str) and row[field].strip() for field in FIELDS):
        raise ReplicationError(f"{origin}: row {row.get('id')} lacks one of {', '.join(FIELDS)}")
    lines = (line.strip() for line in row["dialogue"].splitlines())
    return {
        "id": row["id"],
        "dialogue": "\n".join(line for line in lines if line),
        "summary": " ".join(row["summary"].split()),
    }
