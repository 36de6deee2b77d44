"""What an exact response cache would serve (S-50): byte-level repeats of request logs, and what its key tells apart."""

import hashlib
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.common import identify
from experiments.semantic_figures import repeat_figure
from replication.caches.response import ResponseCache, is_deterministic, request_key
from replication.data.request_log import LoggedRequest, load_log
from replication.records import RunFolder
from replication.stats import median_iqr, wilson

TITLE = "Exact response cache: byte-level repeat rate of request logs, and the key field by field"
ABSENT = object()
TOOL = {"name": "find", "input_schema": {"type": "object", "properties": {"city": {}, "day": {}}}}
REORDERED = {"name": "find", "input_schema": {"type": "object", "properties": {"day": {}, "city": {}}}}
BASE = {
    "model": "m-1",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": [TOOL],
    "tool_choice": "auto",
    "temperature": 0,
    "max_tokens": 64,
    "stop": ["\n"],
    "top_p": 1,
    "seed": 0,
    "stream": False,
}
# field, what is changed, its new value, whether the model can answer otherwise (user report 40)
SENSITIVITY: tuple[tuple[str, str, Any, bool], ...] = (
    ("model", "another model", "m-2", True),
    ("system", "trailing blank", "Be brief. ", True),
    ("system", "absent", ABSENT, True),
    ("messages", "trailing newline", [{"role": "user", "content": "Hello\n"}], True),
    ("messages", "another role", [{"role": "system", "content": "Hello"}], True),
    ("messages", "one more", [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}], True),
    ("tools", "absent", ABSENT, True),
    ("tools", "property order", [REORDERED], True),
    ("tool_choice", "none", "none", True),
    ("temperature", "0.7", 0.7, True),
    ("temperature", "null", None, True),
    ("temperature", "absent", ABSENT, True),
    ("max_tokens", "65", 65, True),
    ("max_tokens", "null", None, True),
    ("stop", "empty list", [], True),
    ("stop", "null", None, True),
    ("top_p", "0.9", 0.9, True),
    ("seed", "1", 1, True),
    ("seed", "null", None, True),
    ("seed", "absent", ABSENT, True),
    ("logit_bias", "an unknown field", {"50256": -100}, True),
    ("stream", "true", True, False),
    ("user", "given", "u-1", False),
    ("metadata", "given", {"trace": "t-1"}, False),
)


@dataclass(frozen=True)
class Config:
    """dataset: a request log. n: its first requests, None for all. No model is run: answers are not generated."""

    model: str = "no-model"
    dataset: str = "fow-cache"
    n: int | None = None
    seed: int = 0
    data_dir: str = ""


def check(config: Config) -> None:
    load_log(config.dataset, config.n, config.seed, config.data_dir or None)


def run(config: Config, folder: RunFolder) -> None:
    """The log through a real cache file; it takes seconds, so a stopped run begins again."""
    log = load_log(config.dataset, config.n, config.seed, config.data_dir or None)
    identify(folder, {"data": log.provenance})
    done = folder.done(("kind", "field", "change"))
    for field, change, value, can_change in SENSITIVITY:
        if ("sensitivity", field, change) not in done:
            folder.append(
                {"kind": "sensitivity", "field": field, "change": change, **_changed(field, value, can_change)}
            )
    if not folder.done(("seconds",)):
        groups, seconds = _replay(log.requests)
        finished = folder.done(("kind", "group"))
        for group, counts in groups.items():
            if ("group", group) not in finished:
                folder.append({"kind": "group", "group": group, **counts})
        folder.append({"kind": "timing", "seconds": seconds})


def changed(field: str, value: Any) -> dict:
    """BASE with one field changed, or left out where the value is ABSENT."""
    return {k: v for k, v in (BASE | {field: value}).items() if v is not ABSENT}


def _changed(field: str, value: Any, can_change: bool) -> dict:
    request = changed(field, value)
    return {
        "can_change": can_change,
        "new_key": request_key(request) != request_key(BASE),
        "cached": is_deterministic(request),
    }


def _replay(requests: list[LoggedRequest]) -> tuple[dict[str, dict], dict]:
    """Per group: requests, repeats (hits), and hits that served the answer of another request."""
    groups: dict[str, dict] = defaultdict(lambda: {"requests": 0, "repeats": 0, "wrong": 0})
    seconds: dict[str, list[float]] = {"hit": [], "miss": []}
    with tempfile.TemporaryDirectory() as place:
        cache = ResponseCache(Path(place, "responses.db"))
        for logged in tqdm(requests, "requests", unit="request"):
            request = {"model": "logged", "messages": logged.content, "temperature": 0}
            # stands for the answer, and says whose it is
            answer = hashlib.sha256(json.dumps(logged.content).encode()).digest()
            begun = time.perf_counter()
            found = cache.get(request)
            seconds["miss" if found is None else "hit"].append(time.perf_counter() - begun)
            counts = groups[logged.group]
            counts["requests"] += 1
            counts["repeats"] += found is not None
            counts["wrong"] += found not in (None, answer)
            if found is None:
                cache.put(request, answer)
        cache.close()
    return groups, {kind: median_iqr(values) for kind, values in seconds.items()}


def summarise(records: list[dict], config: Config) -> dict:
    """Repeat rate of all and by group; hits that served another's answer; the key, field by field; look-up seconds.

    missed: changes that can change the answer and are not told apart, though cached. needless: the opposite.
    """
    groups = {r["group"]: r for r in records if r["kind"] == "group"}
    rows = [{k: v for k, v in r.items() if k != "kind"} for r in records if r["kind"] == "sensitivity"]
    return {
        "all": _rates(list(groups.values())),
        "groups": {name: _rates([row]) for name, row in groups.items()},
        "wrong_hits": sum(row["wrong"] for row in groups.values()),
        "sensitivity": {
            "rows": rows,
            "missed": sum(r["can_change"] and r["cached"] and not r["new_key"] for r in rows),
            "needless": sum(r["new_key"] and not r["can_change"] for r in rows),
        },
        "seconds": next(r["seconds"] for r in records if r["kind"] == "timing"),
    }


def _rates(rows: list[dict]) -> dict:
    return {"repeats": wilson(sum(row["repeats"] for row in rows), sum(row["requests"] for row in rows))}


def plot(folder: Path) -> None:
    repeat_figure(folder)
