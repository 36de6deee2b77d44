"""Says whether two results folders hold the same records, bit by bit, but for wall-clock times."""

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

from replication.records import read_records, without_seconds


def compare(first: Path, second: Path) -> list[str]:
    """Lines about what differs between the runs under two folders; prints what was compared."""
    places = [{file.parent.relative_to(root) for file in root.rglob("records.jsonl")} for root in (first, second)]
    if places[0] != places[1] or not places[0]:
        return [f"not the same runs: {sorted(map(str, places[0]))} and {sorted(map(str, places[1]))}"]
    problems = []
    for place in sorted(places[0]):
        left, right = (without_seconds(read_records(root / place)) for root in (first, second))
        if left == right:
            kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(r["kind"] for r in left).items())
            print(f"{place}: {kinds} records, {_fields(left)} values equal, sha256 {_digest(left)}")
        else:
            number = next((k for k, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
            problems.append(f"{place}: {len(left)} and {len(right)} records, the first difference in record {number}")
    return problems


def _fields(records: list[dict]) -> int:
    return sum(len(record) for record in records)


def _digest(records: list[dict]) -> str:
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    found = compare(*map(Path, sys.argv[1:3]))
    print("\n".join(found) or "identical, wall-clock fields apart")
    sys.exit(1 if found else 0)
