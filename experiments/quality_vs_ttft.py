"""Quality against time to first token, for every method and recompute ratio (S-21, S-22, A-09, A-10; paper fig. 12)."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import Inputs, RagConfig, by_cell, load_inputs, means, require_positive
from experiments.figures import quality_figure
from replication.decode import answer_logprobs
from replication.errors import ReplicationError
from replication.measure import BASELINE, Request, answer_quality, cell, timed_round
from replication.methods import METHODS, make_method
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids, without_passages
from replication.records import RunFolder
from replication.stats import holm, median_iqr, paired_difference, ratio_of_means

TITLE = "Quality against TTFT speed-up, all methods and recompute ratios"
FIDELITY = ("kl_first", "kl_answer", "top1", "agreement", "nll")
ANSWERS = ("f1", "em", "rank")
HKVD = ("cacheblend-paper", "cacheblend-author", "cacheblend-lmcache")
RIVALS = ("full", "naive", "full-reuse", "shared-prefix", "first-k", "random", "uniform", "lowest", "oracle")
FIXED = ("full", "prefix", "prefix-same-order", "naive", "full-reuse", "shared-prefix")
NO_CONTEXT = "no-context"
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
    timed: int = 4
    rounds: int = 3

    def __post_init__(self):
        require_positive(self, "n", "passages", "timed", "rounds")
        for chosen in self.cells():
            make_method(*chosen)
        if not {(name, self.answer_ratio) for name in HKVD} & set(self.cells()):
            raise ReplicationError(
                f"no CacheBlend variant is measured at answer_ratio {self.answer_ratio}: "
                "put it into ratios with curves, or into point_ratios with points"
            )

    def cells(self) -> list[tuple[str, float]]:
        """(method, ratio) of every cell, full prefill first."""
        fixed = [(name, 0.0) for name in FIXED]
        curves = [(name, ratio) for name in self.curves for ratio in self.ratios]
        return fixed + curves + [(name, ratio) for name in self.points for ratio in self.point_ratios]


def run(config: Config, folder: RunFolder) -> None:
    """Quality of every cell on every example, then times; finished examples and rounds are not repeated."""
    inputs = load_inputs(config, folder)
    _quality(config, folder, inputs)
    _timing(config, folder, inputs)


def _quality(config: Config, folder: RunFolder, inputs: Inputs) -> None:
    """The two cells of the gate on every example, then all others; answers are only generated behind an open gate."""
    for title, cells in (("gate", GATE), ("quality", [c for c in config.cells() if c not in GATE])):
        done = folder.done(("kind", "example", "cell"))
        answers = title == "gate" or any(_gate(by_cell(folder.records, "quality"))["open"].values())
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
    cells = [c for c in config.cells() if not make_method(*c).selector.needs_truth]
    for index in tqdm(range(min(config.timed, config.n)), desc="timing", unit="prompt"):
        example, prompt = inputs.examples[index].id, inputs.prompts[index]
        if all(("timing", example, config.rounds - 1, cell(*c)) in done for c in cells):
            continue
        request = Request(inputs.model, prompt)
        for number in range(-1, config.rounds):
            records = timed_round(request, cells, number + 1)
            for record in records if number >= 0 else ():  # the first round warms up
                if ("timing", example, number, record["cell"]) not in done:
                    folder.append({"kind": "timing", "example": example, "round": number, **record})


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: quality with intervals, speed-up with quartiles; the gate; paired comparisons at the answer ratio."""
    quality = by_cell(records, "quality")
    rows = {name: list(examples.values()) for name, examples in quality.items()}
    gate = _gate(quality)
    reported = (*FIDELITY, *(m for m in ANSWERS if gate["open"][m]))
    cells = {name: means(found, reported) for name, found in rows.items()}
    for name, speeds in _speedups(records).items():
        cells.setdefault(name, {}).update(speeds)
    return {"cells": cells, "gate": gate, "compare": _comparisons(quality, config), "n": config.n}


def _speedups(records: list[dict]) -> dict[str, dict]:
    found: dict[str, dict[str, list]] = defaultdict(lambda: {"speedup": [], "ttft": [], "ceiling": []})
    for record in records:
        if record["kind"] == "timing" and record["cell"] != BASELINE:
            seconds, lists = record["seconds"], found[record["cell"]]
            lists["speedup"].append(seconds[BASELINE] / seconds["ttft"])
            lists["ttft"].append(seconds["ttft"])
            lists["ceiling"].append(record["ceiling"])
    return {name: {key: median_iqr(values) for key, values in lists.items()} for name, lists in found.items()}


def _gate(quality: dict) -> dict:
    """A metric is open where full prefill beats no context, interval of the difference above zero; exact match is as
    F1 is. Closed metrics are not reported."""
    differences = {m: paired_difference(*_paired(quality, "full", NO_CONTEXT, m)) for m in ANSWERS}
    beaten = {m: (d["low"] or 0) > 0 for m, d in differences.items()}
    answers = {name: means(list(quality[name].values()), ANSWERS) for name in ("full", NO_CONTEXT)}
    return {
        "open": {"f1": beaten["f1"], "em": beaten["f1"], "rank": beaten["rank"]},
        "full_minus_no_context": differences,
        "answers": answers,
    }


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
