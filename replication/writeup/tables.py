"""The tables that README and the paper share."""

from dataclasses import dataclass
from pathlib import Path

from replication.claims import read_json
from replication.writeup.values import noted_summaries, summaries

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
OTHERS = {
    "lowest@15": "15 % lowest deviation",
    "seam-last-k@15": "15 % last k of each chunk",
    "oracle-attention@15": "15 % oracle of attention (not a method)",
    "promptcache": "PromptCache",
    "legolink-0": "LegoLink-0: built behind a dummy BOS",
    "legolink-k@15": "LegoLink, 15 % first k, in all layers",
    "ape": "APE",
    "cachecraft@15": "Cache-Craft, at most 15 %",
    "query-attention@15": "15 % by the question's attention (ProphetKV)",
    "query-attention-last@15": "15 % by its last layer alone (FusionRAG, online step)",
    "cacheblend-paper@5": "CacheBlend, paper, 5 %",
    "cacheblend-paper@30": "CacheBlend, paper, 30 %",
    "map-reduce": "MapReduce",
    "map-rerank": "MapRerank",
}
LABELS = METHODS | OTHERS
OURS = "cacheblend-paper@15"
NAMES = {"f1": "F1", "rouge_l": "Rouge-L"}
SWEPT = {
    "chunks": "{} chunks",
    "length": "{} tokens a chunk",
    "order": "order {} of the chunks",
    "retrieval": "{} retrieved",
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


def budget(root: Path) -> Table:
    """KL of every method at one recompute budget, and whether CacheBlend's differs from it."""
    places = summaries(root, "equal_budget")
    found = [read_json(p) for p in places]
    names = [name for name in LABELS if any(name in f["against"] for f in found)]
    ours = [[LABELS[OURS], *[_interval(f["cells"][f["ours"]]["kl_first"]) for f in found]]]
    rows = [[LABELS[name], *[_against(f, name) for f in found]] for name in names]
    return Table(["method", *_columns(places)], ours + rows)


def answers(root: Path) -> Table:
    """The task's metric of every method behind an open gate, and the equivalence test of CacheBlend's with the paper's
    margin; a column for each model and data set."""
    places = [p for p in summaries(root, "quality") if p.parts[-2].endswith("-ratio")]
    found = [read_json(p) for p in places]
    names = [name for name in LABELS if any(name in f["cells"] for f in found)]
    rows = [[LABELS[name], *[_interval(f["cells"].get(name, {}).get(f["metric"])) for f in found]] for name in names]
    metrics = ["metric", *[NAMES[f["metric"]] + ", gate closed" * (f["equivalence"][OURS] is None) for f in found]]
    equal = ["equivalence test of CacheBlend, paper, 15 %", *[_equal(f["equivalence"][OURS]) for f in found]]
    return Table(["method", *_columns(places)], [metrics, *rows, equal])


def sweeps(root: Path) -> Table:
    """What the gold answer loses in likelihood, and the least ratio that keeps it, at each value of a sweep."""
    rows, paths = [], summaries(root, "quality")
    for path, run in zip(paths, _columns(paths), strict=True):
        found = read_json(path)
        for value, place in sorted(found.get("places", {}).items(), key=lambda item: float(item[0])):
            lost = [_interval(place["nll_loss"].get(name)) for name in ("full-reuse", "first-k@15", OURS)]
            needed = _needed(place["needed"]["nll"], place["cells"])
            rows.append([run, SWEPT[found["sweep"]].format(value), *lost, needed])
    methods = [LABELS["full-reuse"], LABELS["first-k@15"], LABELS[OURS].strip("*")]
    head = ["run", "at", *methods, "least measured ratio from which on it loses at most 0.1"]
    return Table(head, rows)


def power(root: Path) -> Table:
    """From pilots: how many examples the tests of `quality` need for 80 % power, that of equal answers by margin."""
    places = summaries(root, "power")
    found = [read_json(p) for p in places]
    rows = [
        [f"{p.parts[-4]}, {p.parts[-2]}", NAMES[f["metric"]], f"{blend['deviation']:.2f}"]
        + [f"{margin['needed']:,}" for margin in blend["margins"].values()]
        + [f"{blend['margins']['0.02']['power']:.0%} at {f['most']}"]
        + ["never" if f[key] is None else f"{f[key]:,}" for key in ("for_gate", "for_gain", "for_no_loss")]
        for p, f in zip(places, found, strict=True)
        for blend in [f["methods"][OURS]]
    ]
    margins = [f"n for ±{m}" for m in ("0.02", "0.05", "0.1")]
    others = ["n for the gate", "n for the likelihood gained on reuse", "n for a loss within 0.1 nats"]
    return Table(
        ["pilot", "metric", "SD of the difference", *margins, "power for ±0.02 at an n that time allows", *others], rows
    )


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
    for path, note in noted_summaries(root, "ttft"):
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


def _against(summary: dict, name: str) -> str:
    """KL of a method, and p of its difference to CacheBlend's."""
    if name not in summary["against"]:
        return ""
    p = summary["against"][name]["kl_first_difference"]["p_holm"]
    return f"{_interval(summary['cells'][name]['kl_first'])}, p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}"


def _needed(ratio: dict, cells: dict) -> str:
    """The ratio that suffices with its interval; empty where but one was measured."""
    if sum(name.partition("@")[0] == OURS.partition("@")[0] for name in cells) < 2:
        return ""
    return "{:.0%} [{:.0%}, {:.0%}]".format(*(ratio[key] for key in ("value", "low", "high")))


def _equal(test: dict | None) -> str:
    """What TOST says of a method against full prefill."""
    if test is None:
        return ""
    verdict = "undecided" if not test["decided"] else "equal" if test["p"] < 0.05 else "not equal"
    return f"{verdict} (90 % interval {test['low']:.2f} to {test['high']:.2f})"


def _fidelity(cell: dict) -> str:
    return _interval(cell.get("kl_first")) + (f", {_speed(cell)}" if "speedup" in cell else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _speeds(cell: dict) -> str:
    return f"{_speed(cell)}, {cell['speedup_own']['median']:.1f}× (of {cell['ceiling']:.1f}×)"


def _speed(cell: dict) -> str:
    return f"{cell['speedup']['median']:.1f}×" if "speedup" in cell else ""
