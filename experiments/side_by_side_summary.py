"""The summary of `side_by_side`: every system against full prefill on the same requests."""

from collections import Counter
from collections.abc import Callable

from replication.metrics.answers import exact_match, normalise
from replication.stats import holm, mean_ci, median_iqr, paired_difference, ratio_of_means, wilson

FULL, NO_CACHE, PROMPT_CACHE = "full", "no-kv-cache", "prompt-cache"
ALONE = ("prefix", "cacheblend", "shared-prefix", PROMPT_CACHE, "response", "semantic")
EXACT = ("prefix", "response")
STACK = "response+prefix"
COLUMNS = ("ttft_ratio", "total_ratio", "prefilled_ratio", "bytes", "bill_ratio", "wrong")

Row = dict  # what one system did with one request
Wanted = Callable[[Row], bool]


def summarise(records: list[dict], config) -> dict:
    """Ratios are of means over the same requests, where nothing else is said to full prefill's. Intervals are over the
    requests of this one stream.

    wrong: answers that differ from full prefill's and were made for a request of another meaning. changed: all others
    that differ. other_question: answers made for a request of another meaning, whether they differ or not. correct:
    exact match, of the requests that have a gold answer.
    """
    requests = [r for r in records if r["kind"] == "request"]
    rows = _by_system(requests)
    systems = {name: _system(of_system, rows[FULL]) for name, of_system in rows.items()}
    leaders = {column: _leaders(systems, column) for column in COLUMNS}
    asked, near = (Counter(r[key] for r in requests if r[key]) for key in ("asked", "near"))
    return {
        "systems": _adjusted(systems),
        "asked": {kind: _part(rows, lambda r, kind=kind: r["asked"] == kind) for kind in asked},
        "near": {kind: _part(rows, lambda r, kind=kind: r["near"] == kind) for kind in near},
        "reordered": _part(rows, _reordered),
        "cacheblend_over_prefix_reordered": _tokens(rows, "cacheblend", "prefix", _reordered),
        "prefix_over_cacheblend_chat": _tokens(rows, "prefix", "cacheblend", lambda r: r["asked"] == "chat"),
        "stack_over_best_exact": _tokens(rows, STACK, min(EXACT, key=lambda name: systems[name]["prefilled"]["mean"])),
        "leaders": leaders,
        "most_columns_led": max(Counter(name for names in leaders.values() for name in names).values()),
        "tokens": mean_ci([r["tokens"] for r in requests]),
        "threads": requests[0]["threads"],
        "n": len(requests),
    }


def _by_system(requests: list[dict]) -> dict[str, list[Row]]:
    """System -> its rows in the order of the requests, each with how its answer compares with full prefill's."""
    meanings = {r["example"]: r["meaning"] for r in requests}
    rows: dict[str, list[Row]] = {}
    for request in requests:
        facts = {key: request[key] for key in ("example", "asked", "near", "seen", "answers", "tokens")}
        truth = request["served"][FULL]["text"]
        for name, served in request["served"].items():
            row = {**facts, **served, **request["seconds"].get(name, {})}
            if "text" in row:
                differs, other = _differ(row["text"], truth), meanings[row["made_for"]] != request["meaning"]
                row |= {"other_question": other, "wrong": differs and other, "changed": differs and not other}
            rows.setdefault(name, []).append(row)
    return rows


def _differ(text: str, truth: str) -> bool:
    """Whether neither answer's words hold the other's: `Brelwick` and `The city of Brelwick` are one answer."""
    first, second = (f" {normalise(answer)} " for answer in (text, truth))
    holds = first in second or second in first
    return first != second and not (first.strip() and second.strip() and holds)


def _system(rows: list[Row], full: list[Row]) -> dict:
    """One system; what it has no value for is left out."""
    by_request = {row["example"]: row for row in full}
    base = [by_request[row["example"]] for row in rows]

    def ratio(*parts: str) -> dict:
        return ratio_of_means(*([sum(row[part] for part in parts) for row in side] for side in (rows, base)))

    found = {
        "n": len(rows),
        "prefilled": mean_ci([row["prefilled"] for row in rows]),
        "prefilled_ratio": ratio("prefilled"),
    }
    if "dollars" in rows[0]:
        usage = sum((Counter(row.get("usage", {})) for row in rows), Counter())
        found |= {"dollars": sum(row["dollars"] for row in rows), "usage": usage, "bill_ratio": ratio("dollars")}
    if "text" in rows[0]:
        found |= {part: median_iqr([row[part] for row in rows]) for part in ("ttft", "total", "after")}
        found |= {f"{part}_ratio": ratio(part) for part in ("ttft", "total")}
        found |= {f"{part}_difference": _difference(rows, base, part) for part in ("ttft", "total")}
        found |= {
            "ttft_speedup": median_iqr([b["ttft"] / row["ttft"] for row, b in zip(rows, base, strict=True)]),
            "busy_ratio": ratio("total", "after"),  # of the machine, later requests' benefit included
            "bytes": rows[-1]["bytes"],
            **_answers(rows),
        }
    return found


def _answers(rows: list[Row]) -> dict:
    judged = [exact_match(row["text"], row["answers"]) for row in rows if row["answers"]]
    sources = Counter(row["source"] for row in rows)
    return {
        **{key: wilson(sum(row[key] for row in rows), len(rows)) for key in ("wrong", "changed", "other_question")},
        "hits": {source: wilson(sources[source], len(rows)) for source in ("response", "semantic")},
        "kl_first": mean_ci([row["kl_first"] for row in rows if "kl_first" in row]),
        "correct": wilson(int(sum(judged)), len(judged)),
    }


def _difference(rows: list[Row], base: list[Row], part: str) -> dict:
    return paired_difference([row[part] for row in rows], [row[part] for row in base])


def _adjusted(systems: dict[str, dict]) -> dict[str, dict]:
    """With Holm-adjusted p-values over all systems and both times; full prefill is not compared with itself."""
    tests = [
        systems[name][key]
        for name in systems
        for key in ("ttft_difference", "total_difference")
        if name != FULL and key in systems[name]
    ]
    for test, p in zip(tests, holm([test["p"] for test in tests]), strict=True):
        test["p_holm"] = p
    return systems


def _part(rows: dict[str, list[Row]], wanted: Wanted) -> dict:
    """Each system on some of the requests. prefilled_share: of the prompts' tokens."""
    found = {}
    for name, of_system in rows.items():
        part = [row for row in of_system if wanted(row)]
        found[name] = {
            "n": len(part),
            "prefilled_share": ratio_of_means([r["prefilled"] for r in part], [r["tokens"] for r in part]),
        }
        if "text" in of_system[0]:
            found[name] |= {key: wilson(sum(r[key] for r in part), len(part)) for key in ("wrong", "changed")}
            found[name]["ttft"] = median_iqr([r["ttft"] for r in part])
    return found


def _reordered(row: Row) -> bool:
    """Whether its documents came before, but not in a request that this one repeats or goes on with."""
    return row["seen"] and row["asked"] not in ("repeat", "chat")


def _tokens(rows: dict[str, list[Row]], name: str, other: str, wanted: Wanted = lambda row: True) -> dict:
    """Tokens prefilled by one system over those of another."""
    return ratio_of_means(*([row["prefilled"] for row in rows[system] if wanted(row)] for system in (name, other)))


def _leaders(systems: dict[str, dict], column: str) -> list[str]:
    """The caches that, alone, have the least of it."""
    values = {name: systems[name][column] for name in ALONE if column in systems.get(name, {})}
    values = {name: value["mean"] if isinstance(value, dict) else value for name, value in values.items()}
    return [name for name, value in values.items() if value == min(values.values())]
