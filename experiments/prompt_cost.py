"""What a provider's prompt cache saves, by its published rules, and what loses it (S-30 to S-35, S-60 to S-65).

Nothing here is timed and nothing is sent anywhere: requests made of the data set's passages are priced by the simulator
of replication/caches/provider, in tokens of the local model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer

from experiments.common import Priced, RagConfig, by_cell, identify, require_positive
from experiments.prompt_figure import prompt_figure
from experiments.prompt_scenarios import PITFALLS, Material, asked, body, text
from replication.caches.provider.anthropic import Call, PromptCache
from replication.caches.provider.request import Tokenize, tokenizer_of
from replication.data import RagExample, load
from replication.errors import ReplicationError
from replication.prompt import first_difference, passage_text
from replication.records import RunFolder
from replication.runner import model_source
from replication.stats import mean_ci, ratio_of_means

TITLE = "Prompt cache: break-even, look-back and pitfalls, by the provider's rules"
TTLS = ("5m", "1h")
OWN_SYSTEM = "Answer questions about institutions."


@dataclass(frozen=True)
class Config(Priced, RagConfig):
    """on: the date whose rules hold; api_model, cheaper: whose; calls: in a scenario, `gap` seconds apart.

    gaps: seconds between the calls of the break-even curves; added: most blocks added between two calls.
    """

    n: int = 12
    passages: int = 48
    on: str = "2026-11-01"
    api_model: str = "claude-sonnet-4-5"
    cheaper: str = "claude-haiku-4-5"
    calls: int = 10
    gap: int = 60
    gaps: tuple[int, ...] = (60, 240, 299, 300, 600, 1800, 3599, 3600)
    added: int = 24

    def __post_init__(self):
        require_positive(self, "n", "gap", "added")
        if not 4 <= self.calls <= self.passages:
            raise ReplicationError(f"calls must be from 4 to {self.passages}, the passages, not {self.calls}")
        if self.gap not in self.gaps:
            raise ReplicationError(f"gaps must hold gap = {self.gap}")
        self.require_prices(self.api_model, self.cheaper)


def run(config: Config, folder: RunFolder) -> None:
    """One record for each example and thing to see; finished ones are not repeated."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    identify(folder, {"data": loaded.provenance})
    tokenizer = AutoTokenizer.from_pretrained(model_source(config.model))
    bench = _Bench(config, tokenizer_of(tokenizer))
    done = folder.done(("kind", "cell", "example"))
    for example in tqdm(loaded.examples, "prompt cost", unit="example"):
        material = Material.of(example, config.calls, config.api_model, config.cheaper)
        todo = {
            **{("calls", f"{ttl} {gap}"): (bench.calls, ttl, gap) for ttl in TTLS for gap in config.gaps},
            **{("pitfall", f"{name}/before"): (bench.sequence, p.before, p.at_once) for name, p in PITFALLS.items()},
            **{("pitfall", f"{name}/after"): (bench.sequence, p.after, False) for name, p in PITFALLS.items()},
            ("two calls", "both"): (bench.two_calls,),
            ("look-back", "both"): (bench.look_back,),
        }
        for (kind, cell), (measure, *arguments) in todo.items():
            if (kind, cell, example.id) not in done:
                folder.append({"kind": kind, "cell": cell, "example": example.id, **measure(material, *arguments)})
        if ("minimum", "all", example.id) not in done:
            folder.append({"kind": "minimum", "cell": "all", "example": example.id, **bench.minimum(example, material)})
        if tokenizer.chat_template and ("diff", "system", example.id) not in done:
            found = _parting(tokenizer, example)
            folder.append({"kind": "diff", "cell": "system", "example": example.id, "token": found})


@dataclass(frozen=True)
class _Bench:
    """Asks a new cache of its own for every record."""

    config: Config
    tokenize: Tokenize

    def _cache(self) -> PromptCache:
        return PromptCache(self.config.date, self.tokenize)

    def calls(self, m: Material, ttl: str, gap: int) -> dict:
        """Running totals over the calls, of the cost with the cache and of the tokens without."""
        marker = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        cache, bodies = self._cache(), asked(m, [{**text(m.docs), **marker}])
        calls = [cache.ask(request, at=i * gap) for i, request in enumerate(bodies)]
        return {"cost": _running([_cost(c) for c in calls]), "plain": _running([c.usage.total for c in calls])}

    def sequence(self, m: Material, make: Callable[[Material], list[dict]], at_once: bool) -> dict:
        """A scenario's cost, in tokens at the input rate of the first model, and what its last call reads of the
        history that the call before left cached."""
        cache, gap = self._cache(), self.config.gap
        if at_once:
            calls = [cache.open(request, at=0) for request in make(m)]
        else:
            calls = [cache.ask(request, at=i * gap) for i, request in enumerate(make(m))]
        before, last = calls[-2:]
        head = sum(len(b.ids) for b in before.prompt.blocks if b.level != "messages")
        left = before.usage.total - before.usage.rest - head
        costs = [_cost(call) * _rate(call) / _rate(calls[0]) for call in calls]
        return {
            "cost": sum(costs),
            "last": costs[-1],
            "plain": sum(call.usage.total for call in calls),
            "reads": sum(call.usage.read for call in calls),
            "history_read": max(0, last.usage.read - head) / left if left > 0 else None,
        }

    def two_calls(self, m: Material) -> dict:
        """The article's two calls, and what their marker covers."""
        cache = self._cache()
        first, second = (cache.ask(request, at=i) for i, request in enumerate(asked(m)[:2]))
        covered = sum(len(b.ids) for b in first.prompt.blocks if b.level == "system")
        return {"covered": covered, "first": first.usage.counters(0), "second": second.usage.counters(0)}

    def look_back(self, m: Material) -> dict:
        """Tokens that a call reads after more and more blocks were added since the last one; `kept`: with a second
        marker where the last one was."""
        found = {"read": [], "kept": []}
        for added in range(1, self.config.added + 1):
            for name, mark_old in (("read", False), ("kept", True)):
                cache = self._cache()
                more = [text(m.outputs[i % len(m.outputs)], mark=i == added - 1) for i in range(added)]
                cache.ask(body(m, [], [{"role": "user", "content": [text(m.docs, mark=True)]}]), at=0)
                content = [text(m.docs, mark=mark_old), *more]
                found[name].append(cache.ask(body(m, [], [{"role": "user", "content": content}]), at=1).usage.read)
        return found

    def minimum(self, example: RagExample, m: Material) -> dict:
        """Counters for prefixes of 1, 2, ... passages."""
        tokens, counted = [], []
        for count in range(1, len(example.passages) + 1):
            docs = "".join(passage_text(p) for p in example.passages[:count])
            call = self._cache().ask(body(m, [text(docs, mark=True)], [{"role": "user", "content": "Hi"}]), at=0)
            tokens.append(call.prompt.ends[0])
            counted.append(call.usage.read + call.usage.written)
        return {"minimum": call.rules["minimum_tokens"], "tokens": tokens, "counted": counted}


def _parting(tokenizer, example: RagExample) -> int | None:
    """Where a chat without a system message parts from the same one with it (S-65)."""
    asked = [{"role": "user", "content": example.question}]
    own = [{"role": "system", "content": OWN_SYSTEM}, *asked]
    return first_difference(*(tuple(tokenizer.apply_chat_template(c, return_dict=False)) for c in (asked, own)))


def _cost(call: Call) -> float:
    return call.usage.cost(call.rules)


def _rate(call: Call) -> float:
    """Dollars for a million input tokens."""
    return call.rules["dollars"][0]


def _running(values: Sequence[float]) -> list[float]:
    return [sum(values[: i + 1]) for i in range(len(values))]


def summarise(records: list[dict], config: Config) -> dict:
    """Cost over uncached by number of calls, break-even, each pitfall before over after, and what holds how often."""
    calls = {cell: list(found.values()) for cell, found in by_cell(records, "calls").items()}
    return {
        "curves": {c: [_ratio(rows, i, config) for i in range(config.calls)] for c, rows in calls.items()},
        "break_even": {cell: _mean([_break_even(row) for row in rows]) for cell, rows in calls.items()},
        "pitfalls": {name: _compared(by_cell(records, "pitfall"), name) for name in PITFALLS},
        "look_back": _look_back([r for r in records if r["kind"] == "look-back"]),
        "facts": _facts(records),
        "parts_at": _mean([r["token"] for r in records if r["kind"] == "diff"]),
        "n": config.n,
    }


def _ratio(rows: list[dict], i: int, config: Config) -> dict:
    return ratio_of_means([row["cost"][i] for row in rows], [row["plain"][i] for row in rows])


def _break_even(row: dict) -> int | None:
    """Calls after which the cache has paid for itself."""
    return next((i + 1 for i, (a, b) in enumerate(zip(row["cost"], row["plain"], strict=True)) if a < b), None)


def _mean(values: list) -> dict | None:
    return None if None in values or not values else mean_ci(values)


def _compared(cells: dict, name: str) -> dict:
    """cost, last: of all calls and of the last one, before over after; before, after: over `after` without a cache."""
    before, after = (list(cells[f"{name}/{side}"].values()) for side in ("before", "after"))

    def ratio(a: list[dict], key: str, b: list[dict], other: str) -> dict:
        return ratio_of_means([row[key] for row in a], [row[other] for row in b])

    return {
        "row": PITFALLS[name].row,
        "cost": ratio(before, "cost", after, "cost"),
        "last": ratio(before, "last", after, "last"),
        "before": ratio(before, "cost", after, "plain"),
        "after": ratio(after, "cost", after, "plain"),
        "reads": mean_ci([row["reads"] for row in before]),
        "history_read": _mean([row["history_read"] for row in before]),
    }


def _look_back(rows: list[dict]) -> dict:
    """Most blocks added after which every example still reads, and whether a second marker always reads."""
    steps = range(len(rows[0]["read"]))
    still = [i + 1 for i in steps if all(r["read"][i] > 0 for r in rows)]
    return {
        "last_that_reads": max(still, default=0),
        "read": [sum(r["read"][i] for r in rows) / sum(r["kept"][i] for r in rows) for i in steps],
        "second_marker_reads": min(min(r["kept"]) for r in rows) > 0,
    }


def _facts(records: list[dict]) -> dict:
    """Share of the examples in which each holds."""
    two = [(r["covered"], r["first"], r["second"]) for r in records if r["kind"] == "two calls"]
    short = [r for r in records if r["kind"] == "minimum"]
    written, read = "cache_creation_input_tokens", "cache_read_input_tokens"
    return {
        "marker_covers_the_system_prompt_alone": _share(a[written] == covered for covered, a, _ in two),
        "first_writes_second_reads": _share(
            (a[written] > 0, a[read], b[written], b[read]) == (True, 0, 0, a[written]) for _, a, b in two
        ),
        "counters_are_zero_below_the_minimum_only": _share(
            all((c > 0) == (t >= r["minimum"]) for t, c in zip(r["tokens"], r["counted"], strict=True)) for r in short
        ),
    }


def _share(holds) -> float:
    holds = list(holds)
    return sum(holds) / len(holds)


def plot(folder: Path) -> None:
    prompt_figure(folder)
