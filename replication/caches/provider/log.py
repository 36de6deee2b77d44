"""What the requests of a user's own log would read, write and cost, and where a miss parts from the request before.

>>> import tempfile
>>> from pathlib import Path
>>> system = [{"type": "text", "text": "Be brief. " * 600, "cache_control": {"type": "ephemeral"}}]
>>> body = {"model": "claude-sonnet-4-5", "system": system, "messages": [{"role": "user", "content": "Hi"}]}
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "log.jsonl")
...     _ = file.write_text(json.dumps(body) + "\\n" + json.dumps({**body, "at": 60}))
...     priced = list(price(read_log(file), date(2026, 11, 1), lambda text: tuple(text.encode())))
>>> [item.call.usage.read for item in priced]
[0, 6000]
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from replication.caches.provider.anthropic import Call, PromptCache
from replication.caches.provider.request import ApiError, Tokenize, tokenizer_of
from replication.caches.provider.why import Miss, why_missed
from replication.errors import ReplicationError
from replication.prompt_diff import parting
from replication.runner import model_source

_COLUMNS = ("line", "seconds", "read", "5m write", "1h write", "rest", "cost", "uncached", "dollars", "model")


@dataclass(frozen=True)
class Request:
    """A line of a log. at: seconds, on any clock; usage: the counters that the API gave, where they were logged."""

    line: int
    at: float
    body: dict[str, Any]
    usage: dict[str, Any] | None


@dataclass(frozen=True)
class Priced:
    """A request with what the simulator says; missed: why it read less than it might have; before: the earlier call."""

    request: Request
    call: Call
    missed: Miss | None
    before: Call | None


def read_log(path: Path) -> list[Request]:
    """One Messages API request body a line, with two optional keys of the log's own: `at` and `usage`.

    at: seconds, or ISO 8601; where absent, the time of the line before. Errors: ReplicationError with the number of the
    first bad line.
    """
    try:
        lines = path.read_bytes().decode().split("\n")  # other line ends may stand inside a JSON string
    except (OSError, UnicodeDecodeError) as error:
        raise ReplicationError(f"cannot read {path}: {error}") from error
    requests: list[Request] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            before = requests[-1].at if requests else 0.0
            requests.append(_request(f"line {number} of {path}", number, line, before))
    if not requests:
        raise ReplicationError(f"{path} has no requests: give one Messages API request body a line")
    return requests


def price(requests: Iterable[Request], on: date, tokenize: Tokenize) -> Iterator[Priced]:
    """Each request by the rules of the date `on`, its response beginning at once.

    Errors: ReplicationError, with the line's number, for a request that the API refuses, a model without rules, or a
    time before that of the line above.
    """
    cache, before = PromptCache(on, tokenize), None
    for request in requests:
        try:
            call = cache.ask(request.body, request.at)
        except ApiError as error:
            raise ReplicationError(f"line {request.line}: the API refuses it: {error}") from error
        except ReplicationError as error:
            raise ReplicationError(f"line {request.line}: {error}") from error
        yield Priced(request, call, why_missed(call, before), before)
        before = call


def report(path: str, model: str, on: date) -> str:
    """The table that `prompt-cost` prints. model: whose tokenizer counts."""
    requests = read_log(Path(path))
    tokenizer = AutoTokenizer.from_pretrained(model_source(model))
    priced = list(price(requests, on, tokenizer_of(tokenizer)))
    lines = [_row(_COLUMNS)]
    for item in priced:
        lines += [_row(_cells(item, requests[0].at)), *(f"      {note}" for note in _notes(item, tokenizer))]
    cost, plain = (sum(values) for values in zip(*((_cost(p), p.call.usage.total) for p in priced), strict=True))
    dollars = {p.request.line: p.call.usage.dollars(p.call.rules) for p in priced}
    unpriced = sorted({p.call.rules.model for p in priced if dollars[p.request.line] is None})
    total = f"; the rules have no price for {', '.join(unpriced)}" if unpriced else f", ${sum(dollars.values()):.4f}"
    return "\n".join(
        [
            *lines,
            f"total: {cost:,.0f} instead of {plain:,} without markers ({cost / plain:.2f} times){total}",
            f"Input only, in tokens of {model} at the base input rate; rules of {on}.",
            "The provider's own tokenizer is not public: trust ratios, and lengths near a model's minimum with care.",
        ]
    )


def _request(where: str, number: int, line: str, before: float) -> Request:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise ReplicationError(f"{where} is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ReplicationError(f"{where} is no JSON object: give a Messages API request body")
    at, usage = body.pop("at", before), body.pop("usage", None)
    if usage is not None and not isinstance(usage, dict):
        raise ReplicationError(f"{where}: usage must be the object that the API gave")
    return Request(number, _seconds(where, at), body, usage)


def _seconds(where: str, at: Any) -> float:
    if isinstance(at, str):
        try:
            moment = datetime.fromisoformat(at)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            pass
    elif isinstance(at, (int, float)) and not isinstance(at, bool) and math.isfinite(at):
        return float(at)
    raise ReplicationError(f"{where}: at must be seconds or an ISO 8601 time, not {at!r}")


def _cost(priced: Priced) -> float:
    return priced.call.usage.cost(priced.call.rules)


def _cells(priced: Priced, start: float) -> tuple[str, ...]:
    request, rules, usage = priced.request, priced.call.rules, priced.call.usage
    counts = (usage.read, usage.write["5m"], usage.write["1h"], usage.rest, round(_cost(priced)), usage.total)
    dollars = usage.dollars(rules)
    shown = "unknown" if dollars is None else f"{dollars:.4f}"
    return (str(request.line), f"{request.at - start:g}", *map(str, counts), shown, rules.model)


def _row(cells: Iterable[str]) -> str:
    *numbers, model = cells
    return "".join(f"{cell:>9} " for cell in numbers) + model


def _notes(priced: Priced, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Why it missed, the token where it parts from the request before, and counters of the API that say otherwise."""
    notes = [] if priced.missed is None else [f"miss: {priced.missed.reason}"]
    if priced.missed is not None and priced.missed.token is not None:
        prompts = {"before": priced.before.prompt.ids, "now": priced.call.prompt.ids}
        notes += parting(tokenizer, prompts, priced.missed.token)
    logged = priced.request.usage or {}
    read, written = (logged.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    if logged and ((read > 0), (written > 0)) != ((priced.call.usage.read > 0), (priced.call.usage.written > 0)):
        notes.append(f"logged otherwise: read {read}, written {written}")
    return notes
