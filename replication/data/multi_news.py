"""Multi-News as LongBench cuts it: several articles on one event, to be summed up together (non-commercial research).

Articles are cut into chunks of at most `words` words. Every article's beginning is taken before any article's second
chunk, because news state the main thing first.
"""

import io
import json
import random
import re
import zipfile
from pathlib import Path

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.hub import hub_file
from replication.data.local import read_local
from replication.errors import ReplicationError
from replication.task import NEWS_SUMMARY

FILE = "longbench_multi_news.jsonl"
HUB = {"path": "THUDM/LongBench", "name": "data.zip"}
MEMBER = "data/multi_news.jsonl"
QUESTION = "Sum up all the articles."
_ARTICLE = re.compile(r"^Passage \d+:\n", re.MULTILINE)


def multi_news(
    n: int, seed: int, passages: int = 6, words: int = 300, data_dir: str | Path | None = None
) -> tuple[list[RagExample], dict]:
    """n sets of articles with their summary, as `passages` chunks of at most `words` words (about 400 tokens at 300).

    Raises ReplicationError when neither file nor hub can be read, or has fewer than n rows with that many chunks.
    """
    if words < 1:
        raise ReplicationError(f"words must be at least 1, not {words}")
    content, source = read_local(FILE, data_dir) if data_dir else _hub_lines()
    rows = [(id, _cut(articles, words), summary) for id, articles, summary in _rows(content)]
    usable = [row for row in rows if len(row[1]) >= passages]
    if n > len(usable):
        raise ReplicationError(f"multi_news has {len(usable)} rows with {passages} chunks, but n is {n}")
    source["dropped"] = {"too few chunks": len(rows) - len(usable)}
    chosen = random.Random(f"multi_news-{seed}").sample(usable, len(usable))[:n]
    return [_example(*row, passages) for row in chosen], source


DATASETS["multi_news"] = Dataset(multi_news, supports=1, task=NEWS_SUMMARY)


def _cut(articles: list[str], words: int) -> list[tuple[int, int, str]]:
    """(article, number in it, text) of every chunk."""
    chunks = []
    for number, article in enumerate(articles):
        split = article.split()
        chunks += [(number, k, " ".join(split[at : at + words])) for k, at in enumerate(range(0, len(split), words))]
    return chunks


def _example(id: str, chunks: list[tuple[int, int, str]], summary: str, count: int) -> RagExample:
    first = sorted(chunks, key=lambda chunk: (chunk[1], chunk[0]))[:count]
    return RagExample(
        id=id,
        passages=tuple(Passage("", text) for _, _, text in sorted(first)),
        question=QUESTION,
        answers=(summary,),
        distractors=(),
        supports=(),
    )


def _rows(content: bytes) -> list[tuple[str, list[str], str]]:
    """(id, articles, summary) of every line."""
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            (summary,) = row["answers"]
            articles = _ARTICLE.split(row["context"].replace("NEWLINE_CHAR", "\n"))
            rows.append((f"multi_news-{number}", [a for a in articles if a.strip()], " ".join(summary.split())))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicationError(f"{FILE} line {number} is no row of LongBench: {error!r}") from error
    return rows


def _hub_lines() -> tuple[bytes, dict]:
    packed, source = hub_file(**HUB, file=FILE)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return archive.read(MEMBER), source
