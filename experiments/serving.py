"""vLLM as the referee of our prefix cache (S-10 to S-19): what both reuse of the same prompts, what a hit saves in
each, and whether both say the same. With LMCache's blending inside vLLM, which needs a GPU, also reuse that is no
prefix (S-24).

The servers are given by their addresses; `bash scripts/engines/vllm.sh` starts them, runs this and ends them.
"""

from pathlib import Path

from experiments.common import identify, load_inputs
from experiments.serving_answers import answers
from experiments.serving_common import Servers
from experiments.serving_common import ServingConfig as Config
from experiments.serving_counts import counts
from experiments.serving_figure import serving_figure
from experiments.serving_summary import summarise
from experiments.serving_times import blends, times
from replication.records import RunFolder
from replication.runner import check_device, model_source

__all__ = ["TITLE", "Config", "check", "plot", "run", "summarise"]

TITLE = "vLLM as referee of the prefix cache: cached tokens, TTFT of hits, greedy outputs"


def check(config: Config) -> None:
    """ReplicationError for what would stop a run: the model, the device, or a server that is not there or not so."""
    model_source(config.model)
    check_device(config.device, config.dtype)
    Servers(config)


def run(config: Config, folder: RunFolder) -> None:
    """All parts, one after the other; what is compared is interleaved, and what was finished is not repeated."""
    servers = Servers(config)
    inputs = load_inputs(config, folder)
    identify(folder, {"kind": "engine", "vllm": servers.cached.version})
    counts(config, folder, inputs.model, servers)
    times(config, folder, inputs.model, servers)
    if servers.blending:
        blends(config, folder, inputs.model, servers)
    answers(config, folder, inputs, servers)


def plot(folder: Path) -> None:
    serving_figure(folder)
