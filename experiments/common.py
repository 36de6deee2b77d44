"""What the experiments share: inputs that identify themselves, names of cells, and per-metric summaries."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from replication.caches.provider.rules import load_rules
from replication.data import DATASETS, RagExample, load
from replication.errors import ReplicationError
from replication.model import DTYPES, Model, load_model
from replication.prompt import ChunkedPrompt, PromptFormat, build_prompt
from replication.records import RunFolder
from replication.stats import mean_ci, wilson

SHARES = ("top1", "em", "rank")


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
        return PromptFormat(self.template, self.separator, self.bos, DATASETS[self.dataset].task)


class Priced:
    """What a config adds whose bills follow a provider's rules; on: the date whose rules hold, as text."""

    on: str

    @property
    def date(self) -> date:
        try:
            return date.fromisoformat(self.on)
        except ValueError as error:
            raise ReplicationError(f"on must be a date of the form YYYY-MM-DD, not '{self.on}'") from error

    def require_prices(self, *models: str) -> None:
        for model in models:
            if "dollars" not in load_rules("anthropic", model, self.date).values:
                raise ReplicationError(f"the rules have no price for {model}: choose another model")


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
        build_prompt(e.passages, e.question, model.tokenizer, config.style, model.context) for e in loaded.examples
    ]
    # the BOS as it was resolved: the setting may leave it to the tokenizer
    identify(folder, {"model": model.weights, "data": loaded.provenance, "bos": list(prompts[0].bos)})
    return Inputs(model, loaded.examples, prompts)


def identify(folder: RunFolder, inputs: dict) -> None:
    """Write down, once per folder and kind, which model and data its records come from."""
    inputs = {"kind": "inputs", **inputs}
    known = [r for r in folder.records if r["kind"] == inputs["kind"]]
    if not known:
        folder.append(inputs)
    elif any(known[0].get(key) != value for key, value in inputs.items()):
        raise ReplicationError(
            f"{folder.path} was made from another model or other data: choose another --out or delete it"
        )


def by_cell(records: Iterable[dict], kind: str) -> dict[str, dict[str, dict]]:
    """Records of a kind as cell -> example -> record, in the order they were made."""
    cells: dict[str, dict[str, dict]] = defaultdict(dict)
    for record in records:
        if record["kind"] == kind:
            cells[record["cell"]][record["example"]] = record
    return cells


def means(rows: list[dict], metrics: Iterable[str]) -> dict[str, dict]:
    """Mean and interval of each metric that every row has; Wilson's interval for those that are 0 or 1."""
    return {m: _estimate([row[m] for row in rows], m) for m in metrics if all(m in row for row in rows)}


def _estimate(values: list[float], metric: str) -> dict:
    return wilson(int(sum(values)), len(values)) if metric in SHARES else mean_ci(values)


def require_positive(config: RagConfig, *names: str) -> None:
    """ReplicationError unless these settings are at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ReplicationError(f"{name} must be at least 1, not {getattr(config, name)}")


def require_dtypes(dtypes: tuple[str, ...]) -> None:
    """ReplicationError unless there is a dtype and all are known, before the first of them is measured."""
    unknown = set(dtypes) - set(DTYPES)
    if unknown or not dtypes:
        raise ReplicationError(f"dtypes must be of {', '.join(DTYPES)}, not '{', '.join(sorted(unknown))}'")
