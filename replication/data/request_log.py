"""Logs of requests in the order they came, for measuring how often one repeats byte by byte (S-50).

`tau-bench` is a real agent's calls, each with the whole conversation before it; `mooncake` a production trace in which
512-token blocks are names; the pair sets are asked as they are, the stored questions first. The data's hash goes into
the records, its text never does.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replication.data.local import read_local
from replication.data.mooncake import FILE as MOONCAKE_FILE
from replication.data.pairs import PAIRS, load_pairs
from replication.data.tau_bench import calls, load_conversations
from replication.errors import ReplicationError
from replication.registry import Registry

LATE_CALL = 4


@dataclass(frozen=True)
class LoggedRequest:
    """group: which requests of the log this one is counted with. content: what a repeat must have in common."""

    group: str
    content: Any


@dataclass(frozen=True)
class RequestLog:
    """Requests in order, and where they came from; provenance is JSON-ready and holds no path of this machine."""

    requests: list[LoggedRequest]
    provenance: dict


LOGS = Registry("request log")


def load_log(name: str, n: int | None = None, seed: int = 0, data_dir: str | Path | None = None) -> RequestLog:
    """The first n requests (None: all). seed: order of a pair set; logs keep their own.

    data_dir: folder of local data files; defaults to REPLICATION_DATA. Raises ReplicationError for an unknown name, a
    log that is not there or damaged, or an n that it does not have.
    """
    requests, source = LOGS[name](seed, data_dir)
    count = len(requests) if n is None else n
    if not 1 <= count <= len(requests):
        raise ReplicationError(f"log '{name}' has {len(requests)} requests, so n must be from 1 to that, not {n}")
    return RequestLog(requests[:count], {"dataset": name, **source, "requests": count})


def _pair_log(name: str):
    def log(seed: int, data_dir: str | Path | None) -> tuple[list[LoggedRequest], dict]:
        loaded = load_pairs(name, None, seed, data_dir)
        stored = [LoggedRequest("stored", pair.stored) for pair in loaded.pairs]
        return stored + [LoggedRequest(pair.category, pair.asked) for pair in loaded.pairs], loaded.provenance

    return log


LOGS.update({name: _pair_log(name) for name in PAIRS})


@LOGS.register("tau-bench")
def tau_bench(seed: int, data_dir: str | Path | None) -> tuple[list[LoggedRequest], dict]:
    """Every call of tau-bench's airline agent (MIT): the messages before each message of the assistant."""
    conversations, source = load_conversations(data_dir)
    numbered = [entry for messages in conversations for entry in enumerate(calls(messages), start=1)]
    late = f"call {LATE_CALL} and later"
    return [LoggedRequest(f"call {number}" if number < LATE_CALL else late, call) for number, call in numbered], source


@LOGS.register("mooncake")
def mooncake(seed: int, data_dir: str | Path | None) -> tuple[list[LoggedRequest], dict]:
    """Mooncake's conversation trace (Apache-2.0): equal block names and length, so its repeats are an upper bound."""
    content, source = read_local(MOONCAKE_FILE, data_dir)
    try:
        rows = [json.loads(line) for line in content.splitlines()]
        requests = [LoggedRequest("trace", [row["input_length"], row["hash_ids"]]) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ReplicationError(f"{MOONCAKE_FILE} is no request trace: {error!r}") from error
    return requests, source
