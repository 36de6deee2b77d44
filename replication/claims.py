"""Claims against results: each has a criterion that was fixed before its run, and gets a verdict.

A criterion that fails is a result like any other; nothing here can change it. A claim that two cells differ must stand
besides when the test of its comparison is adjusted (Holm) over all comparisons made together.
"""

import json
import math
import operator
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

import experiments
from replication.errors import ReplicationError

_OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_TERM = re.compile(r"([a-z]\w*)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)", re.IGNORECASE)
_SOURCE_ROW = re.compile(r"[SA]-\d+(, ?[SA]-\d+)*")
_NAMED = {"id", "row", "statement"}
_JUDGED = {"experiment", "metric", "criterion", "fixed"}
_KEYS = {*_NAMED, *_JUDGED, "where", "needs", "reason"}
# What a number that summary.json gives without an interval may be called in a criterion.
_PLAIN = ("mean", "value")
_ALPHA = 0.05
_ABSENT = object()

Term = tuple[str, str, float]


@dataclass(frozen=True)
class Claim:
    """terms: the criterion, all of which must hold; fixed: when it was; where: patterns (as of shell file
    names) of the `model` or `dataset` it is about. needs: what not every machine has, without which it cannot be tested
    here. reason: why it cannot be tested at all; it then has no criterion."""

    id: str
    row: str
    statement: str
    experiment: str = ""
    metric: str = ""
    criterion: str = ""
    fixed: datetime | None = None
    where: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    reason: str = ""

    @property
    def untestable(self) -> bool:
        """Whether it may stay without a result."""
        return bool(self.needs or self.reason)

    @property
    def condition(self) -> str:
        """The criterion and what it needs, or why there is none."""
        return (self.criterion + f"; needs {self.needs}" * bool(self.needs)) or self.reason

    @property
    def terms(self) -> list[Term]:
        return parse_criterion(self.criterion)


@dataclass(frozen=True)
class Outcome:
    """What one results folder says. estimate: the metric there, None when the summary has no such metric; passed:
    None when there is nothing to judge, because the metric is absent or the experiment could not measure it.
    undecided: it failed, but its interval holds values that would have passed, so the data rule neither out."""

    folder: Path
    model: str
    dataset: str
    estimate: dict | None
    passed: bool | None
    undecided: bool = False


@dataclass(frozen=True)
class Row:
    """A claim with the outcome of every results folder that it is about."""

    claim: Claim
    outcomes: list[Outcome]

    @property
    def verdict(self) -> str:
        judged = [outcome.passed for outcome in self.outcomes if outcome.passed is not None]
        if judged:
            return "reproduced" if all(judged) else "partly" if any(judged) else "not reproduced"
        measured = any(outcome.estimate is not None for outcome in self.outcomes)
        return "not testable" if measured or self.claim.untestable else "not run"

    @property
    def undecided(self) -> bool:
        """Whether it was not reproduced, but not refuted anywhere either."""
        failed = [outcome for outcome in self.outcomes if outcome.passed is False]
        return self.verdict == "not reproduced" and all(outcome.undecided for outcome in failed)


def parse_criterion(text: str) -> list[Term]:
    """(field, operator, bound) of each comparison in e.g. `low > 0 and mean >= 3.5`; ReplicationError if it is none."""
    terms = []
    for part in text.split(" and "):
        match = _TERM.fullmatch(part.strip())
        if match is None:
            raise ReplicationError(f"criterion '{text}' is not of the form `high <= 0.5 and mean > 0`")
        terms.append((match[1], match[2], float(match[3])))
    return terms


def claims_file() -> Path:
    return next(iter(experiments.__path__)) / Path("claims.yaml")


def load_claims() -> list[Claim]:
    """All claims; ReplicationError for the first malformed one."""
    claims, problems = read_claims()
    if problems:
        raise ReplicationError(problems[0])
    return claims


def read_claims() -> tuple[list[Claim], list[str]]:
    """The well-formed claims, and a line for each malformed one."""
    file = claims_file()
    try:
        entries = yaml.safe_load(file.read_text()) or []
    except (OSError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ReplicationError(f"cannot read {file.name}: {reason}") from error
    if not isinstance(entries, list):
        raise ReplicationError(f"{file.name} is no list of claims")
    claims, problems = [], []
    for number, entry in enumerate(entries, start=1):
        try:
            claim = _claim(entry)
            if any(claim.id == other.id for other in claims):
                raise ReplicationError("its id is taken")
            claims.append(claim)
        except ReplicationError as error:
            label = entry.get("id", number) if isinstance(entry, dict) else number
            problems.append(f"{file.name}, claim {label}: {error}")
    return claims, problems


def _claim(entry: Any) -> Claim:
    if not isinstance(entry, dict):
        raise ReplicationError("it is no mapping")
    if unknown := sorted(map(str, entry.keys() - _KEYS)):
        raise ReplicationError(f"unknown key {', '.join(unknown)}; known: {', '.join(sorted(_KEYS))}")
    wanted = _NAMED | ({"reason"} if "reason" in entry else _JUDGED)
    if missing := sorted(wanted - entry.keys()):
        raise ReplicationError(f"it lacks {', '.join(missing)}")
    texts = wanted - {"fixed"}
    if wrong := sorted(key for key in texts if not isinstance(entry[key], str) or not entry[key].strip()):
        raise ReplicationError(f"{wrong[0]} must be text")
    if not _SOURCE_ROW.fullmatch(entry["row"]):
        raise ReplicationError(f"row '{entry['row']}' is no S-.. or A-..")
    if "reason" in entry:
        if extra := sorted(entry.keys() - wanted):
            raise ReplicationError(f"what cannot be tested has no {extra[0]}")
        return Claim(**entry)
    where = entry.get("where") or {}
    if not isinstance(where, dict) or where.keys() - {"model", "dataset"}:
        raise ReplicationError("where takes model and dataset")
    if not isinstance(entry.get("needs", ""), str):
        raise ReplicationError("needs must be text")
    claim = Claim(**{**entry, "fixed": _moment(entry["fixed"]), "where": where})
    parse_criterion(claim.criterion)
    return claim


def _moment(value: Any) -> datetime:
    """A date is its first moment; without a time zone it is UTC. YAML makes dates of unquoted ones by itself."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    if not isinstance(moment, datetime):
        raise ReplicationError(f"fixed '{value}' is no ISO date")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def evaluate(results_root: str | Path, claims: list[Claim] | None = None) -> list[Row]:
    """Each claim with what `<root>/<model>/<experiment>/<dataset>/summary.json` say about it."""
    return [Row(claim, _outcomes(claim, Path(results_root))) for claim in (load_claims() if claims is None else claims)]


def _outcomes(claim: Claim, root: Path) -> list[Outcome]:
    outcomes = []
    for file in sorted(root.glob(f"*/{claim.experiment}/*/summary.json")):
        place = {"model": file.parts[-4], "dataset": file.parts[-2]}
        if all(fnmatch(place[key], pattern) for key, pattern in claim.where.items()):
            estimate = _estimate(read_json(file), claim)
            passed = _judged(claim, estimate)
            undecided = passed is False and _is_open(claim.terms, estimate)
            outcomes.append(Outcome(file.parent, **place, estimate=estimate, passed=passed, undecided=undecided))
    return outcomes


def read_json(file: Path) -> dict:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ReplicationError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ReplicationError(f"{file} holds no JSON object")
    return content


def estimate_at(summary: dict, metric: str) -> dict | None:
    """The metric as a mapping of what a criterion may name: empty where it is null, None where it is absent."""
    found = _at(summary, metric)
    if found is None:
        return {}
    if isinstance(found, (bool, int, float)):
        return dict.fromkeys(_PLAIN, float(found))
    return found if isinstance(found, dict) else None


def _estimate(summary: dict, claim: Claim) -> dict | None:
    found = estimate_at(summary, claim.metric)
    return None if found and not all(name in found for name, _, _ in claim.terms) else found


def _at(node: Any, path: str) -> Any:
    """The value at a dotted path, whose keys may have dots themselves, as in `ratios.0.15.kl`."""
    if not path:
        return node
    for key, child in node.items() if isinstance(node, dict) else ():
        if f"{path}.".startswith(f"{key}."):
            found = _at(child, path[len(key) + 1 :])
            if found is not _ABSENT:
                return found
    return _ABSENT


def _judged(claim: Claim, estimate: dict | None) -> bool | None:
    values = [(estimate or {}).get(name) for name, _, _ in claim.terms]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        return None
    return _holds(claim.terms, estimate) and not (_says_different(claim) and estimate.get("p_holm", 0) >= _ALPHA)


def _says_different(claim: Claim) -> bool:
    """Whether two equal cells would fail the criterion."""
    equal = 1 if claim.metric.endswith("_ratio") else 0
    return not _holds(claim.terms, dict.fromkeys((name for name, _, _ in claim.terms), equal))


def _is_open(terms: list[Term], estimate: dict) -> bool:
    """Whether some value that the interval holds would pass; quartiles, which stand around a median, are none."""
    if "median" in estimate or any(estimate.get(name) is None for name in ("mean", "low", "high")):
        return False
    values = [estimate[name] for name in ("low", "mean", "high")]
    return any(_holds(terms, {**estimate, "low": v, "mean": v, "high": v}) for v in values)


def _holds(terms: list[Term], estimate: dict) -> bool:
    return all(_OPERATORS[sign](estimate[name], bound) for name, sign, bound in terms)
