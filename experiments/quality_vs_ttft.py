"""Quality against time to first token, for every method and recompute ratio (S-21, S-22, A-09, A-10; paper fig. 12)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import Inputs, RagConfig, by_cell, cell, load_inputs, means
from experiments.figures import quality_figure
from replication.decode import answer_logprobs
from replication.measure import Request, answer_quality, transformers_ttft
from replication.methods import METHODS
from replication.metrics.cost import ceiling
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids, without_passages
from replication.records import RunFolder
from replication.stats import holm, mean_ci, median_iqr, paired_difference, ratio_of_means

TITLE = "Quality against TTFT speed-up, all methods and recompute ratios"
FIDELITY = ("kl_first", "kl_answer", "top1", "agreement", "nll")
ANSWERS = ("f1", "em", "rank")
HKVD = ("cacheblend-paper", "cacheblend-author", "cacheblend-lmcache")
RIVALS = ("full", "naive", "full-reuse", "shared-prefix", "first-k", "random", "uniform", "lowest", "oracle")
NO_CONTEXT, BASELINE = "no-context", "transformers"
GATE = [("full", 0.0), (NO_CONTEXT, 0.0)]


@dataclass(frozen=True)
class Config(RagConfig):
    """curves: methods measured at all `ratios`; points: at `point_ratios`. Answers are generated at `answer_ratio`.

    timed: how many of the prompts are timed, each in `rounds` interleaved rounds after one warm-up round.
    """

    n: int = 20
    curves: tuple[str, ...] = ("cacheblend-paper", "first-k", "random")
    ratios: tuple[float, ...] = (0.01, 0.05, 0.15, 0.3, 0.5, 1.0)
    points: tuple[str, ...] = (
        "cacheblend-author",
        "cacheblend-lmcache",
        "shared-prefix-blend",
        "uniform",
        "lowest",
        "oracle",
    )
    point_ratios: tuple[float, ...] = (0.05, 0.15)
    answer_ratio: float = 0.15
    timed: int = 5
    rounds: int = 3

    def cells(self) -> list[tuple[str, float]]:
        """(method, ratio) of every cell, full prefill first."""
        fixed = [(name, 0.0) for name, entry in METHODS.items() if not entry.takes_ratio]
        curves = [(name, ratio) for name in self.curves for ratio in self.ratios]
        return fixed + curves + [(name, ratio) for name in self.points for ratio in self.point_ratios]


def run(config: Config, folder: RunFolder) -> None:
    """Quality of every cell on every example, then times; finished examples and rounds are not repeated."""
    for name in (*config.curves, *config.points):
        METHODS[name]
    inputs = load_inputs(config, folder)
    _quality(config, folder, inputs)
    _timing(config, folder, inputs)


def _quality(config: Config, folder: RunFolder, inputs: Inputs) -> None:
    """The two cells of the gate on every example, then all others; answers are only generated behind an open gate."""
    for title, cells in (("gate", GATE), ("quality", [c for c in config.cells() if c not in GATE])):
        done = folder.done(("kind", "example", "cell"))
        answers = title == "gate" or _gate(by_cell(folder.records, "quality"))["passed"]
        for index in tqdm(range(len(inputs.examples)), desc=title, unit="example"):
            example = inputs.examples[index].id
            todo = [c for c in cells if ("quality", example, cell(*c)) not in done]
            for record in _quality_of(config, inputs, index, todo, answers) if todo else ():
                folder.append({"kind": "quality", "example": example, **record})


def _quality_of(config: Config, inputs: Inputs, index: int, cells, answers: bool) -> Iterator[dict]:
    model, example, prompt = inputs.model, inputs.examples[index], inputs.prompts[index]
    gold = answer_ids(example.answers[0], model.tokenizer, config.style)
    request = Request(model, prompt)
    reference = answer_logprobs(model, request.prefill("full"), gold)
    bare = without_passages(example.question, model.tokenizer, config.style)
    for name, ratio in cells:
        asked, source = (bare, Request(model, bare)) if name == NO_CONTEXT else (prompt, request)
        prefill = source.prefill("full" if name == NO_CONTEXT else name, ratio)
        record = {
            "cell": cell(name, ratio),
            "tokens": len(asked),
            "reused": prefill.report.reused,
            "rows": prefill.report.rows,
            **fidelity(reference, answer_logprobs(model, prefill, gold), gold),
        }
        if answers and ratio in (0, config.answer_ratio):
            record |= answer_quality(model, asked, prefill, example, config.style)
        yield record


def _timing(config: Config, folder: RunFolder, inputs: Inputs) -> None:
    done = folder.done(("kind", "example", "round", "cell"))
    for index in tqdm(range(min(config.timed, config.n)), desc="timing", unit="prompt"):
        example, prompt = inputs.examples[index], inputs.prompts[index]
        cells = [(name, ratio) for name, ratio in config.cells() if name != "oracle"]
        if all(("timing", example.id, config.rounds - 1, cell(*c)) in done for c in cells):
            continue
        request = Request(inputs.model, prompt)
        for number in range(-1, config.rounds):  # round -1 warms up
            records = _timed_round(inputs.model, request, cells)
            if number >= 0:
                for record in records:
                    if ("timing", example.id, number, record["cell"]) not in done:
                        folder.append({"kind": "timing", "example": example.id, "round": number, **record})


def _timed_round(model, request: Request, cells) -> list[dict]:
    """Every method once, one after the other, with transformers' own full prefill as the first."""
    baseline = transformers_ttft(model, request.prompt)
    records = [{"cell": BASELINE, "seconds": {"ttft": baseline}}]
    for name, ratio in cells:
        report = request.prefill(name, ratio).report
        records.append(
            {
                "cell": cell(name, ratio),
                "ceiling": ceiling(model, len(request.prompt), report),
                "seconds": {**report.seconds, BASELINE: baseline},
            }
        )
    return records


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: quality with intervals, speed-up with quartiles; the gate; paired comparisons at the answer ratio."""
    quality = by_cell(records, "quality")
    rows = {name: list(examples.values()) for name, examples in quality.items()}
    cells = {name: means(found, (*FIDELITY, *ANSWERS)) for name, found in rows.items()}
    for name, speeds in _speedups(records).items():
        cells.setdefault(name, {}).update(speeds)
    gate = _gate(quality)
    if not gate["passed"]:
        for name in (cell(*c) for c in GATE):
            cells[name] = {m: v for m, v in cells[name].items() if m not in ANSWERS}
    return {"cells": cells, "gate": gate, "compare": _comparisons(quality, config), "n": config.n}


def _speedups(records: list[dict]) -> dict[str, dict]:
    found: dict[str, dict[str, list]] = {}
    for record in records:
        if record["kind"] == "timing" and record["cell"] != BASELINE:
            seconds, lists = (
                record["seconds"],
                found.setdefault(record["cell"], {"speedup": [], "ttft": [], "ceiling": []}),
            )
            lists["speedup"].append(seconds[BASELINE] / seconds["ttft"])
            lists["ttft"].append(seconds["ttft"])
            lists["ceiling"].append(record["ceiling"])
    return {name: {key: median_iqr(values) for key, values in lists.items()} for name, lists in found.items()}


def _gate(quality: dict) -> dict:
    """Full prefill must beat no context, interval above zero, or answers are not reported."""
    differences = {metric: paired_difference(*_paired(quality, "full", NO_CONTEXT, metric)) for metric in ANSWERS}
    beaten = [m for m in ("f1", "rank") if differences[m]["low"] is not None and differences[m]["low"] > 0]
    answers = {
        name: {m: mean_ci([r[m] for r in quality[name].values()]) for m in ANSWERS} for name in ("full", NO_CONTEXT)
    }
    return {"passed": bool(beaten), "by": beaten, "full_minus_no_context": differences, "answers": answers}


def _comparisons(quality: dict, config: Config) -> dict:
    """HKVD variants against every rival at the same budget: ratio of mean KL, paired difference, Holm-adjusted p."""
    compare = {}
    for variant in HKVD:
        for rival in RIVALS:
            ours = cell(variant, config.answer_ratio)
            theirs = cell(rival, config.answer_ratio if METHODS[rival].takes_ratio else 0.0)
            if ours in quality and theirs in quality:
                a, b = _paired(quality, ours, theirs, "kl_first")
                compare[f"{ours}/{theirs}"] = {
                    "kl_ratio": ratio_of_means(a, b),
                    "kl_difference": paired_difference(a, b),
                    "nll_difference": paired_difference(*_paired(quality, ours, theirs, "nll")),
                }
    adjusted = holm([c["kl_difference"]["p"] for c in compare.values()])
    for comparison, p in zip(compare.values(), adjusted, strict=True):
        comparison["kl_difference"]["p_holm"] = p
    return compare


def _paired(quality: dict, a: str, b: str, metric: str) -> tuple[list[float], list[float]]:
    shared = [e for e in quality[a] if e in quality[b]]
    return [quality[a][e][metric] for e in shared], [quality[b][e][metric] for e in shared]


def plot(folder: Path) -> None:
    quality_figure(folder)
