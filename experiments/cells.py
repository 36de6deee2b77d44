"""Quality and times of (method, ratio) cells on RAG prompts: how they are measured, recorded and summed up."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from tqdm import tqdm

from experiments.common import Inputs, by_cell, means
from replication.data import RagExample
from replication.decode import answer_logprobs
from replication.measure import BASELINE, Request, answer_quality, cell, timed_round
from replication.methods import make_method
from replication.metrics.cost import ceiling
from replication.metrics.fidelity import fidelity
from replication.model import Model
from replication.prompt import ChunkedPrompt, PromptFormat, answer_ids, without_passages
from replication.records import RunFolder
from replication.stats import median_iqr, paired_difference

FIDELITY = ("kl_first", "kl_answer", "top1", "agreement", "nll")
NO_CONTEXT = "no-context"
GATE = [("full", 0.0), (NO_CONTEXT, 0.0)]
# Exact prefix caching saves 1 to 3 % here; against so low a ceiling a measured speed-up shows noise alone.
JUDGED_CEILING = 1.1
# Along a longer reference summary, log-probabilities of the whole vocabulary would fill the memory.
GOLD_TOKENS = 64

Cell = tuple[str, float]


def record_quality(
    folder: RunFolder,
    inputs: Inputs,
    style: PromptFormat,
    cells: list[Cell],
    answered: Collection[Cell],
    title: str,
    **tags,
) -> None:
    """One record of each cell on every example, unless it is there; answers are generated for the cells `answered`.

    tags: fields that tell these records from others of the same example and cell.
    """
    done = folder.done(("kind", "example", "cell", *tags))
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), desc=title, unit="example"):
        todo = [c for c in cells if ("quality", example.id, cell(*c), *tags.values()) not in done]
        for record in _quality_of(inputs.model, example, prompt, style, todo, answered) if todo else ():
            folder.append({"kind": "quality", **tags, "example": example.id, **record})


def _quality_of(
    model: Model, example: RagExample, prompt: ChunkedPrompt, style: PromptFormat, cells, answered
) -> Iterator[dict]:
    gold = answer_ids(example.answers[0], model.tokenizer, style)[:GOLD_TOKENS]
    request = Request(model, prompt)
    full = request.prefill("full")
    reference = answer_logprobs(model, full, gold)
    bare = without_passages(example.question, model.tokenizer, style)
    for name, ratio in cells:
        if name == NO_CONTEXT:
            asked, prefill = bare, Request(model, bare).prefill("full")
        else:
            asked, prefill = prompt, full if name == "full" else request.prefill(name, ratio)
        record = {
            "cell": cell(name, ratio),
            "tokens": len(asked),
            "answerable": example.answerable,
            "reused": prefill.report.reused,
            "ceiling": ceiling(model, len(asked), prefill.report),
            **fidelity(reference, answer_logprobs(model, prefill, gold), gold),
        }
        if (name, ratio) in answered:
            record |= answer_quality(model, asked, prefill, example, style)
        yield record


def record_times(folder: RunFolder, inputs: Inputs, cells: list[Cell], rounds: int, **tags) -> None:
    """TTFT of each cell on every prompt, in `rounds` interleaved rounds after one warm-up round; finished rounds are
    not repeated. Cells whose selector needs a full prefill first are left out."""
    done = folder.done(("kind", "example", "round", "cell", *tags))
    cells = [c for c in cells if not make_method(*c).selector.needs_truth]
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), desc="timing", unit="prompt"):
        place = tuple(tags.values())
        if all(("timing", example.id, rounds - 1, cell(*c), *place) in done for c in cells):
            continue
        request = Request(inputs.model, prompt)
        for number in range(-1, rounds):
            records = timed_round(request, cells, number + 1)
            for record in records if number >= 0 else ():  # the first round warms up
                if ("timing", example.id, number, record["cell"], *place) not in done:
                    folder.append({"kind": "timing", **tags, "example": example.id, "round": number, **record})


def speedups(records: list[dict]) -> dict[str, dict]:
    """Median and quartiles of each timed cell's TTFT, ceiling and speed-up over transformers' full prefill;
    over_prefix: over the exact prefix cache, its passages in another order, where that was timed."""
    rounds: dict[tuple, dict[str, dict]] = defaultdict(dict)
    for record in records:
        if record["kind"] == "timing" and record["cell"] != BASELINE:
            rounds[record["example"], record["round"]][record["cell"]] = record
    found: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for timed in rounds.values():
        for name, record in timed.items():
            seconds, lists = record["seconds"], found[name]
            lists["speedup"].append(seconds[BASELINE] / seconds["ttft"])
            lists["ttft"].append(seconds["ttft"])
            lists["ceiling"].append(record["ceiling"])
            if "prefix" in timed:
                lists["over_prefix"].append(timed["prefix"]["seconds"]["ttft"] / seconds["ttft"])
    return {name: {key: median_iqr(values) for key, values in lists.items()} for name, lists in found.items()}


def over_ceiling(cells: dict[str, dict]) -> float | None:
    """The largest median speed-up over what the operation count allows, where it allows more than JUDGED_CEILING; None
    where nothing of the kind was timed."""
    timed = [(c["speedup"]["median"], c["ceiling"]["median"]) for c in cells.values() if "ceiling" in c]
    return max((speedup / ceiling for speedup, ceiling in timed if ceiling > JUDGED_CEILING), default=None)


def gate(quality: dict, metrics: Collection[str]) -> dict:
    """A metric is open where full prefill beats no context, interval of the difference above zero; all but `rank` are
    as the task's first one is. Closed metrics are not reported, nor are those that were not measured."""
    rows = {name: list(quality[name].values()) for name, _ in GATE}
    answers = {name: means(found, metrics) for name, found in rows.items()}
    measured = [m for m in metrics if all(m in found for found in answers.values())]
    differences = {m: paired_difference(*paired(quality, "full", NO_CONTEXT, m)) for m in measured}
    beaten = {m: (d["low"] or 0) > 0 for m, d in differences.items()}
    return {
        "open": {m: beaten[m if m == "rank" else measured[0]] for m in measured},
        "full_minus_no_context": differences,
        "answers": answers,
    }


def is_open(records: list[dict], metrics: Collection[str]) -> bool:
    """Whether answers are worth generating: the gate of one of the metrics is open."""
    return any(gate(by_cell(records, "quality"), metrics)["open"].values())


def reported(passed: dict) -> tuple[str, ...]:
    """The metrics that are summed up behind this gate."""
    return (*FIDELITY, *(metric for metric, opened in passed["open"].items() if opened))


def paired(quality: dict, a: str, b: str, metric: str) -> tuple[list[float], list[float]]:
    """The metric's values of two cells on the examples that both have, in the same order."""
    shared = [e for e in quality[a] if e in quality[b]]
    return [quality[a][e][metric] for e in shared], [quality[b][e][metric] for e in shared]
