"""Quality over the chunks' number, length, order and retrieval, and the ratio (A-01, A-09..A-11, A-13, A-15).

One run is one sweep on one data set, and has a results folder of its own: <data set>-<sweep>.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.cells import GATE, Cell, is_open, record_quality, record_times
from experiments.common import Inputs, RagConfig, identify, require_positive
from experiments.pipelines import record_pipelines
from experiments.quality_figure import sweep_figure
from experiments.quality_summary import at, summary
from experiments.sweeps import SWEEPS, load_value, sweep_inputs
from replication.caches.embedding import embedder_directory
from replication.errors import ReplicationError
from replication.mapping import PIPELINES
from replication.measure import cells_at
from replication.methods import make_method
from replication.model import load_model
from replication.records import RunFolder
from replication.runner import check_device, model_source

TITLE = "Answer quality and fidelity over number, length, order and retrieval of chunks, and over the recompute ratio"


@dataclass(frozen=True)
class Config(RagConfig):
    """sweep: what is varied (a name in SWEEPS) over `values` (none: the sweep's own).

    curve: methods measured at all `ratios` (in the ratio sweep: at all values); methods: measured at `ratio`, where
    they take one. pipelines: ways to answer passage by passage. pool: examples whose passages are retrieved from.
    timed: prompts of each value that are timed, each in `rounds` interleaved rounds after one warm-up round.
    """

    n: int = 40
    sweep: str = "ratio"
    values: tuple[float, ...] = ()
    curve: tuple[str, ...] = ("cacheblend-paper",)
    ratios: tuple[float, ...] = (0.05, 0.15, 0.3, 0.5)
    methods: tuple[str, ...] = ("naive", "full-reuse", "shared-prefix", "first-k", "random")
    ratio: float = 0.15
    pipelines: tuple[str, ...] = ()
    pool: int = 100
    timed: int = 2
    rounds: int = 3

    def __post_init__(self):
        require_positive(self, "n", "passages", "rounds")
        if not self.curve:
            raise ReplicationError("curve needs at least one method that takes a ratio")
        sweep = SWEEPS[self.sweep]
        if min(self.points) < sweep.least:
            raise ReplicationError(f"values of the sweep '{self.sweep}' start at {sweep.least}, not {min(self.points)}")
        if sweep.prompts and any(value != int(value) for value in self.points):
            raise ReplicationError(f"values of the sweep '{self.sweep}' are whole numbers, not {self.values}")
        if len(set(self.points)) < max(2, len(self.points)):
            raise ReplicationError(f"a sweep takes at least 2 different values, not '{self.values}'")
        if self.sweep == "retrieval" and self.pool < self.n:
            raise ReplicationError(f"pool must be at least n, which is {self.n}, not {self.pool}")
        for chosen in self.cells():
            make_method(*chosen)
        for name in self.pipelines:
            PIPELINES[name]
        if self.pipelines and sweep.arrange:
            raise ReplicationError(f"pipelines read passage by passage, which the sweep '{self.sweep}' rearranges")
        if not {("full-reuse", 0.0), (self.curve[0], self.ratio)} <= set(self.cells()):
            raise ReplicationError(f"full-reuse must be among the methods, and ratio {self.ratio} among the ratios")

    @property
    def place(self) -> str:
        return f"{self.dataset}-{self.sweep}"

    @property
    def points(self) -> tuple[float, ...]:
        """The values that are swept over, in rising order."""
        return tuple(sorted(self.values or SWEEPS[self.sweep].values))

    @property
    def prompt_values(self) -> tuple[float, ...]:
        """The values that change the prompt; the ratio sweep has one prompt an example."""
        return self.points if SWEEPS[self.sweep].prompts else (float(self.passages),)

    @property
    def curve_ratios(self) -> tuple[float, ...]:
        return self.ratios if SWEEPS[self.sweep].prompts else self.points

    def cells(self) -> list[Cell]:
        """(method, ratio) of every cell at one value, full prefill first."""
        fixed = cells_at(self.methods, self.ratio)
        curves = [(name, ratio) for name in self.curve for ratio in sorted(self.curve_ratios)]
        return [("full", 0.0), *fixed, *curves]


def check(config: Config) -> None:
    """ReplicationError unless the model, the device and the data of every value are there."""
    model_source(config.model)
    check_device(config.device, config.dtype)
    if config.sweep == "retrieval":
        embedder_directory()
    for value in config.prompt_values:
        load_value(config, value)


def run(config: Config, folder: RunFolder) -> None:
    """The gate at every value, then all other cells, then times; what is finished is not repeated."""
    model = load_model(config.model, config.dtype, config.device)
    inputs, data = sweep_inputs(config, model)
    bos = list(next(iter(inputs.values())).prompts[0].bos)
    identify(folder, {"model": model.weights, "data": data, "bos": bos})
    for value, found in inputs.items():
        record_quality(folder, found, config.style, GATE, GATE, f"gate {value:g}", value=value)
    for value, found in inputs.items():
        _measure(config, folder, found, value)


def _measure(config: Config, folder: RunFolder, inputs: Inputs, value: float) -> None:
    """Quality of every cell at one value, answers only behind an open gate, and times of its first prompts."""
    cells = [c for c in config.cells() if c not in GATE]
    answered = cells if is_open(at(folder.records, value), config.style.task.metrics) else []
    record_quality(folder, inputs, config.style, cells, answered, f"{config.sweep} {value:g}", value=value)
    record_pipelines(folder, inputs, config.style, config.pipelines if answered else (), value=value)
    timed = Inputs(inputs.model, inputs.examples[: config.timed], inputs.prompts[: config.timed])
    record_times(folder, timed, config.cells(), config.rounds, value=value)


def summarise(records: list[dict], config: Config) -> dict:
    return summary(records, config)


def plot(folder: Path) -> None:
    sweep_figure(folder)
