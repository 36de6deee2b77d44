"""Pipelines that answer passage by passage, measured on the examples of a quality run (A-11, paper fig. 13)."""

from collections.abc import Sequence

from tqdm import tqdm

from experiments.common import Inputs
from replication.mapping import PIPELINES
from replication.measure import BASELINE, text_scores, transformers_ttft
from replication.prompt import PromptFormat
from replication.records import RunFolder
from replication.stats import median_iqr

# Speed-up -> the time until the first token of the answer: passage by passage, and as if all ran at the same time
SPEEDUPS = {"speedup": "ttft", "speedup_parallel": "parallel"}


def record_pipelines(folder: RunFolder, inputs: Inputs, style: PromptFormat, names: Sequence[str], **tags) -> None:
    """One record of each pipeline on every example, unless it is there: its answer's metrics, and its times beside
    transformers' full prefill of the prompt with all passages."""
    done = folder.done(("kind", "example", "cell", *tags))
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), "pipelines", unit="example"):
        for name in names:
            if ("quality", example.id, name, *tags.values()) in done:
                continue
            baseline = transformers_ttft(inputs.model, prompt)
            found = PIPELINES[name](inputs.model, example.passages, example.question, style, style.task.new_tokens)
            parallel = found.ttft - sum(found.maps) + max(found.maps)
            folder.append(
                {
                    "kind": "quality",
                    **tags,
                    "example": example.id,
                    "cell": name,
                    "tokens": found.tokens,
                    "answerable": example.answerable,
                    **text_scores(inputs.model, found.text, example, style.task),
                    "seconds": {"ttft": found.ttft, "parallel": parallel, BASELINE: baseline},
                }
            )


def pipeline_speedups(rows: list[dict]) -> dict[str, dict]:
    """Median and quartiles of a pipeline's speed-up over transformers' full prefill, for each of SPEEDUPS."""
    seconds = [row["seconds"] for row in rows]
    return {name: median_iqr([s[BASELINE] / s[time] for s in seconds]) for name, time in SPEEDUPS.items()}
