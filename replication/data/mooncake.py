"""Mooncake's conversation trace: an hour of requests to a chat service, their prompts as hashes of 512-token blocks.

From the file of that name in kvcache-ai/Mooncake (Apache-2.0; Qin et al., FAST '25). Block hashes are chained, so equal
hashes mean equal prefixes; the last block of a prompt may be partial and has a hash all the same.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from replication.data.local import read_local
from replication.errors import ReplicationError

FILE = "mooncake_conversation_trace.jsonl"
BLOCK = 512
_ORIGIN = "FAST25-release/traces/conversation_trace.jsonl of github.com/kvcache-ai/Mooncake, under that name"


@dataclass(frozen=True)
class Arrival:
    """time: seconds since the trace began. output: tokens generated. blocks: hash of each block of the prompt."""

    time: float
    output: int
    blocks: tuple[int, ...]


def load_trace(data_dir: str | Path | None = None) -> tuple[list[Arrival], dict]:
    """All requests in order of arrival, and the file's name and hash.

    data_dir: defaults to the environment variable REPLICATION_DATA. ReplicationError when the file is not there, or is
    not the trace.
    """
    content, source = read_local(FILE, data_dir, _ORIGIN)
    arrivals = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            arrivals.append(
                Arrival(row["timestamp"] / 1000, int(row["output_length"]), tuple(map(int, row["hash_ids"])))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ReplicationError(f"{FILE} line {number} is no request of the trace: {error!r}") from error
    if not arrivals:
        raise ReplicationError(f"{FILE} is empty; it should be {_ORIGIN}")
    return sorted(arrivals, key=lambda a: a.time), source
