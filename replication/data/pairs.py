"""Pairs of questions with the one label that matters to a semantic cache: would the stored answer be right?

`fow-cache` (default, offline) is a PyPI package of written questions: paraphrases and near repeats, which one answer
serves, and traps that differ by a negation, an entity, a number or the scope. `qqp` is Quora Question Pairs, real
questions with the label duplicate or not. A pair set's hash goes into the records, its text never does.
"""

import gzip
import hashlib
import importlib.util
import json
import random
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from replication.data.local import read_local
from replication.errors import ReplicationError
from replication.registry import Registry

QQP_FILE = "qqp_gptcache_80854.jsonl.gz"


@dataclass(frozen=True)
class Pair:
    """A question whose answer is in the cache, and one that is asked later.

    same: whether the stored answer is right for `asked`. category: what makes the two alike or different.
    """

    id: str
    stored: str
    asked: str
    same: bool
    category: str


@dataclass(frozen=True)
class LoadedPairs:
    """Pairs and where they came from; provenance is JSON-ready and holds no path of this machine."""

    pairs: list[Pair]
    provenance: dict


PAIRS = Registry("pair set")


def load_pairs(name: str, n: int | None = None, seed: int = 0, data_dir: str | Path | None = None) -> LoadedPairs:
    """The first n pairs (None: all) of a set in an order drawn by seed; a larger n extends the list.

    data_dir: folder of local data files, for the sets that have one; defaults to REPLICATION_DATA.
    Raises ReplicationError for an unknown name, a set that is not there, a bad row, or an n that the set does not have.
    """
    rows, source = PAIRS[name](data_dir)
    count = len(rows) if n is None else n
    if not 1 <= count <= len(rows):
        raise ReplicationError(f"pair set '{name}' has {len(rows)} pairs, so n must be from 1 to that, not {n}")
    pairs = random.Random(f"{name}-{seed}").sample(rows, len(rows))[:count]
    text = json.dumps([asdict(pair) for pair in pairs], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    params = {"n": count, "seed": seed}
    return LoadedPairs(pairs, {"dataset": name, **source, "params": params, "pairs_sha256": digest})


@PAIRS.register("fow-cache")
def fow_cache(data_dir: str | Path | None) -> tuple[list[Pair], dict]:
    """Paraphrases and traps of the PyPI package fow-cache 0.1.0 (data: CC BY 4.0).

    Pairs that the set itself marks as ambiguous (their label depends on the application) are dropped.
    """
    package = importlib.util.find_spec("fow_cache")
    if package is None:
        raise ReplicationError("pair set 'fow-cache' is not installed: run `pip install fow-cache==0.1.0`")
    content = Path(package.submodule_search_locations[0], "data", "pairs.jsonl").read_bytes()
    rows = _rows(content, "pairs.jsonl")
    pairs = [
        _pair(r, "pairs.jsonl", r.get("id"), ("a", "b", "same_answer"), r.get("category"))
        for r in rows
        if not r.get("ambiguous")
    ]
    source = {"source": "fow-cache", "file_sha256": hashlib.sha256(content).hexdigest()}
    return pairs, source | {"dropped": {"ambiguous": len(rows) - len(pairs)}}


@PAIRS.register("qqp")
def qqp(data_dir: str | Path | None) -> tuple[list[Pair], dict]:
    """Quora Question Pairs as GPTCache's benchmark cuts them (Quora's terms: non-commercial research)."""
    packed, source = read_local(QQP_FILE, data_dir)
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ReplicationError(f"cannot read {QQP_FILE}: {error}") from error
    pairs = [
        _pair(r, QQP_FILE, f"qqp-{i}", ("text_a", "text_b", "label"), "duplicate" if r.get("label") else "other")
        for i, r in enumerate(_rows(content, QQP_FILE))
    ]
    return pairs, source


def _rows(content: bytes, file: str) -> list[dict]:
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ReplicationError(f"{file} line {number} is no JSON: {error}") from error
    return rows


def _pair(row: dict, file: str, id: str, keys: tuple[str, str, str], category: str) -> Pair:
    try:
        stored, asked, label = (row[key] for key in keys)
    except KeyError as error:
        raise ReplicationError(f"{file}: row {id} has no {error}") from error
    sound = all(isinstance(text, str) and text.strip() for text in (stored, asked)) and label in (0, 1)
    if not sound:
        raise ReplicationError(f"{file}: row {id} has an empty question or no label")
    return Pair(id, stored, asked, bool(label), category)
