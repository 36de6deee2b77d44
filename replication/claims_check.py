"""What must hold for a verdict to be worth anything: each problem is one line."""

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from replication.claims import Row, evaluate, read_claims, read_json
from replication.errors import ReplicationError
from replication.records import jsonable, read_records
from replication.runner import configure, find_experiments, shown

_FILES = ("records.jsonl", "summary.json")


def check(root: str | Path) -> list[str]:
    """Problems of the claims file and of all results under `root`."""
    claims, problems = read_claims()
    for folder in sorted({file.parent for name in _FILES for file in Path(root).glob(f"**/{name}")}):
        problems += _attempt(_summary_problems, folder / "summary.json")
    for claim in claims:
        problems += _attempt(lambda claim: _row_problems(evaluate(root, [claim])[0]), claim)
    return problems


def _attempt(find, subject) -> list[str]:
    try:
        return find(subject)
    except ReplicationError as error:
        return [str(error)]


def _summary_problems(file: Path) -> list[str]:
    """Whether summary.json is what the records beside it give."""
    folder = file.parent
    if not file.exists():
        return [f"{shown(folder)}: no summary.json, its run is not finished; the command that began it resumes it"]
    name, dataset = file.parts[-3], file.parts[-2]
    settings = read_json(folder / "provenance.json").get("config")
    if not isinstance(settings, dict):
        return [f"{shown(folder)}: provenance.json has no config"]
    config = configure(name, dataset=dataset, settings=settings)
    again = jsonable(find_experiments()[name].summarise(read_records(folder), config), digits=6)
    found = _first_difference(read_json(file), again)
    return [f"{shown(file)}: {found} is not what its records give"] if found is not None else []


def _row_problems(row: Row) -> list[str]:
    claim = row.claim
    if not row.outcomes:
        if claim.untestable:
            return []
        wanted = " and ".join(f"{key} {value}" for key, value in claim.where.items())
        return [f"claim {claim.id}: no result of {claim.experiment}" + f" for {wanted}" * bool(wanted)]
    problems = []
    for outcome in row.outcomes:
        place = shown(outcome.folder)
        if outcome.estimate is None and not claim.untestable:
            problems.append(f"claim {claim.id}: {place} has no {claim.metric} with what the criterion names")
        started = _started(outcome.folder)
        if started is None:
            problems.append(f"claim {claim.id}: {place} does not say when its run started")
        elif started < claim.fixed:
            problems.append(f"claim {claim.id}: {place} was run before the criterion was fixed")
    return problems


def _started(folder: Path) -> datetime | None:
    try:
        return datetime.fromisoformat(read_json(folder / "provenance.json")["started"]).astimezone()
    except (KeyError, TypeError, ValueError):
        return None


def _first_difference(old: Any, new: Any, place: str = "") -> str | None:
    """Dotted place of the first value that differs by more than the summation order of another machine explains."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(key, old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted(old.keys() | new.keys())]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = list(zip(range(len(old)), old, new, strict=True))
    elif _is_number(old) and _is_number(new):
        return None if math.isclose(old, new, rel_tol=2e-6, abs_tol=1e-12) else place
    else:
        return None if old == new else place
    differences = (_first_difference(a, b, f"{place}.{key}" if place else str(key)) for key, a, b in pairs)
    return next((found for found in differences if found is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_ABSENT = object()
