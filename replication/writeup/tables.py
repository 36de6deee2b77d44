"""The tables that README and the paper share."""

from dataclasses import dataclass
from pathlib import Path

from replication.claims import read_json
from replication.writeup.values import summaries

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
FAULTS = {
    "position": "wrong positions",
    "sink": "built alone: own sink, no shared prefix",
    "cross": "no cross-chunk attention",
}


@dataclass(frozen=True)
class Table:
    """Texts of a table's head and rows."""

    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def quality(root: Path) -> Table:
    """KL of every method and its speed-up, a column for each model and data set."""
    places = summaries(root, "quality_vs_ttft")
    found = [read_json(p)["cells"] for p in places]
    rows = [[label, *[_fidelity(cells.get(name, {})) for cells in found]] for name, label in METHODS.items()]
    return Table(["method", *_columns(places)], rows)


def faults(root: Path) -> Table:
    """Shapley shares of the three faults of naive concatenation."""
    places = summaries(root, "naive_concatenation")
    found = [read_json(p) for p in places]
    rows = [
        [label, *[_interval(s["shapley"][factor]["share"], 100, 0) + " %" for s in found]]
        for factor, label in FAULTS.items()
    ]
    return Table(["share of naive's KL", *_columns(places)], rows)


def ttft(root: Path) -> Table:
    """Speed-ups at fixed lengths with their ceilings."""
    rows = []
    elsewhere = root / "without-amx"
    for path in [*summaries(root, "ttft"), *summaries(elsewhere, "ttft")]:
        note = " without AMX" if path.is_relative_to(elsewhere) else ""
        for place, found in read_json(path)["places"].items():
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
    head = ["full prefill of", "takes", "CacheBlend, paper", "CacheBlend, LMCache", "first k", "reuses that pay"]
    return Table(head, rows)


def memory(root: Path) -> Table:
    """Peak memory of a blend."""
    rows = [
        [path.parts[-4], *place.split(), f"{found['kv_bytes'] / 1e6:.0f} MB", f"{found['peak_in_kv']:.2f}"]
        for path in summaries(root, "peak_memory")
        for place, found in read_json(path)["places"].items()
    ]
    return Table(["model", "dtype", "tokens", "KV of the prompt", "peak, × KV"], rows)


def _columns(places: list[Path]) -> list[str]:
    return [f"{p.parts[-4]}, {p.parts[-2]} (n = {read_json(p)['n']})" for p in places]


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
