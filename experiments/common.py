"""What the experiments share: inputs that identify themselves, names of cells, and per-metric summaries."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from replication.data import RagExample, load
from replication.errors import ReplicationError
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt, PromptFormat, build_prompt
from replication.records import RunFolder
from replication.stats import mean_ci


@dataclass(frozen=True)
class RagConfig:
    """Settings of every experiment over RAG prompts; data_dir is where local data sets lie (or REPLICATION_DATA)."""

    model: str = "smollm2-135m"
    dataset: str = "synthetic"
    n: int = 40
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    data_dir: str = ""
    passages: int = 6
    template: str = "plain"
    separator: str = ""
    bos: bool | None = None

    @property
    def style(self) -> PromptFormat:
        return PromptFormat(self.template, self.separator, self.bos)


@dataclass(frozen=True)
class Inputs:
    """The loaded model, and examples with their prompts."""

    model: Model
    examples: list[RagExample]
    prompts: list[ChunkedPrompt]


def load_inputs(config: RagConfig, folder: RunFolder) -> Inputs:
    """Load model and data, and write down what they are; a resumed run must find the same."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model = load_model(config.model, config.dtype, config.device)
    prompts = [
        build_prompt(e.passages, e.question, model.tokenizer, config.style, model.context_length)
        for e in loaded.examples
    ]
    identify(folder, {"model": model.fingerprint, "data": loaded.provenance})
    return Inputs(model, loaded.examples, prompts)


def identify(folder: RunFolder, inputs: dict) -> None:
    """Write down, once per folder, which model and data its records come from."""
    known = [r for r in folder.records if r["kind"] == "inputs"]
    if not known:
        folder.append({"kind": "inputs", **inputs})
    elif any(known[0].get(key) != value for key, value in inputs.items()):
        raise ReplicationError(
            f"{folder.path} was made from another model or other data: choose another --out or delete it"
        )


def cell(method: str, ratio: float = 0.0) -> str:
    """Name of a method at a recompute ratio, in percent: `cacheblend-paper@15`; the ratio is left out where 0."""
    return f"{method}@{100 * ratio:g}" if ratio else method


def by_cell(records: Iterable[dict], kind: str) -> dict[str, dict[str, dict]]:
    """Records of a kind as cell -> example -> record, in the order they were made."""
    cells: dict[str, dict[str, dict]] = defaultdict(dict)
    for record in records:
        if record["kind"] == kind:
            cells[record["cell"]][record["example"]] = record
    return cells


def means(rows: list[dict], metrics: Iterable[str]) -> dict[str, dict]:
    """Mean and interval of each metric that every row has."""
    return {m: mean_ci([row[m] for row in rows]) for m in metrics if all(m in row for row in rows)}
