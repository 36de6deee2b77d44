"""Writes the numbers of README.md from results/, between its markers; `--check` only says whether they differ."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

from replication.claims import evaluate
from replication.claims_table import estimate_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
METHODS = {
    "full": "full prefill",
    "prefix": "exact prefix cache, passages in another order",
    "prefix-same-order": "exact prefix cache, passages in the same order",
    "no-context": "no passages at all",
    "naive": "naive concatenation",
    "full-reuse": "positions repaired",
    "shared-prefix": "chunks built behind the shared prefix",
    "random@15": "15 % random",
    "uniform@15": "15 % uniform stride",
    "first-k@15": "15 % first k of each chunk",
    "cacheblend-paper@15": "**CacheBlend, paper, 15 %**",
    "cacheblend-author@15": "CacheBlend, authors' code, 15 %",
    "cacheblend-lmcache@15": "CacheBlend, LMCache, 15 %",
    "shared-prefix-blend@15": "shared prefix and HKVD, 15 %",
    "oracle@15": "15 % oracle (not a method)",
}


def quality() -> str:
    """KL of every method and its speed-up, a column for each model and data set."""
    places = sorted(RESULTS.glob("*/quality_vs_ttft/*/summary.json"), key=_order)
    found = [_read(p)["cells"] for p in places]
    head = ["method", *[f"{p.parts[-4]}, {p.parts[-2]} (n = {_read(p)['n']})" for p in places]]
    rows = [[label, *[_fidelity(cells.get(name, {})) for cells in found]] for name, label in METHODS.items()]
    return _table(head, rows)


def faults() -> str:
    """Shapley shares of the three faults, and the KL that single repairs leave."""
    places = sorted(RESULTS.glob("*/naive_concatenation/*/summary.json"), key=_order)
    found = [_read(p) for p in places]
    head = ["share of naive's KL", *[f"{p.parts[-4]}, {p.parts[-2]} (n = {_read(p)['n']})" for p in places]]
    names = {
        "position": "wrong positions",
        "sink": "built alone: own sink, no shared prefix",
        "cross": "no cross-chunk attention",
    }
    rows = [
        [label, *[_interval(s["shapley"][factor]["share"], 100, 0) + " %" for s in found]]
        for factor, label in names.items()
    ]
    return _table(head, rows)


def ttft() -> str:
    """Speed-ups at fixed lengths with their ceilings."""
    rows = []
    paths = sorted(RESULTS.glob("*/ttft/*/summary.json"), key=_order)
    for path in [*paths, *RESULTS.glob("without-amx/*/ttft/*/summary.json")]:
        note = " without AMX" if path.is_relative_to(RESULTS / "without-amx") else ""
        for place, found in _read(path)["places"].items():
            dtype, length = place.split()
            cells, build = found["cells"], found["build"]
            rows.append(
                [
                    f"{path.parts[-4]}, {dtype}{note}, {int(length):,} tokens",
                    f"{cells['transformers']['ttft']['median']:.2f} s",
                    *[_speeds(cells[name]) for name in ("cacheblend-paper@15", "cacheblend-lmcache@15", "first-k@15")],
                    _number(build["reuses_to_pay"]),
                ]
            )
    head = [
        "full prefill of",
        "takes",
        "CacheBlend, paper",
        "CacheBlend, LMCache",
        "first k",
        "reuses that pay",
    ]
    return _table(head, rows)


def memory() -> str:
    """Peak memory of a blend."""
    rows = [
        [path.parts[-4], *place.split(), f"{found['kv_bytes'] / 1e6:.0f} MB", f"{found['peak_in_kv']:.2f}"]
        for path in sorted(RESULTS.glob("*/peak_memory/*/summary.json"), key=_order)
        for place, found in _read(path)["places"].items()
    ]
    return _table(["model", "dtype", "tokens", "KV of the prompt", "peak, × KV"], rows)


def verdicts() -> str:
    """How many claims came out how, and where those that did not come out everywhere failed."""
    rows = evaluate(RESULTS)
    counts = Counter(row.verdict for row in rows)
    failed = [
        [
            f"`{row.claim.id}`: {row.claim.statement}",
            row.claim.criterion,
            "<br>".join(
                f"{o.model}, {o.dataset}: {estimate_text(o.estimate, row.claim.terms[0][0])}"
                for o in row.outcomes
                if o.passed is False
            ),
        ]
        for row in rows
        if row.verdict in ("partly", "not reproduced")
    ]
    line = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{len(rows)} claims: {line}. Those that failed somewhere:\n\n" + _table(
        ["claim", "criterion", "failed with"], failed
    )


BLOCKS = {"quality": quality, "faults": faults, "ttft": ttft, "memory": memory, "verdicts": verdicts}


def rendered(text: str) -> str:
    """README text with every marked block filled in."""
    for name, block in BLOCKS.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = marked.sub(lambda m, block=block: m[1] + block() + m[2], text)
    return text


def _order(path: Path) -> tuple:
    return path.parts[-4] != "smollm2-135m", path.parts[-2] != "synthetic", path.parts


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


def _interval(estimate: dict | None, scale: float = 1, digits: int = 2) -> str:
    if estimate is None:
        return ""
    mean, low, high = (scale * estimate[k] for k in ("mean", "low", "high"))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _fidelity(cell: dict) -> str:
    return _interval(cell.get("kl_first")) + (f", {_speed(cell)}" if "speedup" in cell else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _speeds(cell: dict) -> str:
    return f"{_speed(cell)}, {cell['speedup_own']['median']:.1f}× (of {cell['ceiling']:.1f}×)"


def _speed(cell: dict) -> str:
    return f"{cell['speedup']['median']:.1f}×" if "speedup" in cell else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = rendered(before)
    if "--check" in sys.argv[1:]:
        sys.exit("README.md differs from results/: run `python scripts/render_readme.py`" if before != after else 0)
    readme.write_text(after)
