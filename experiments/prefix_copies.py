"""How transformers shares a prefix: a StaticCache that is copied for each request (S-14); beside it, shared blocks."""

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import StaticCache

from experiments.common import RagConfig, load_inputs, require_positive
from experiments.prefix_figures import copies_figure
from replication.caches.prefix import PrefixCache
from replication.device import synchronize
from replication.errors import ReplicationError
from replication.metrics.fidelity import kl
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.records import RunFolder
from replication.stats import mean_ci, median_iqr

TITLE = "A StaticCache copied for each request: contamination without the copy, and what the copy costs"
CELLS = ("copied", "not copied")


@dataclass(frozen=True)
class Config(RagConfig):
    """n examples ask two questions about the same passages; the first is answered with `output` tokens. lengths: of
    the prefix that is copied, each `rounds` times after one warm-up, into a cache with room for `room` tokens more."""

    n: int = 20
    output: int = 8
    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    rounds: int = 15
    room: int = 64
    block_size: int = 16

    def __post_init__(self):
        require_positive(self, "n", "passages", "output", "rounds", "room", "block_size")
        if self.n < 2:
            raise ReplicationError("n must be at least 2: the second question comes from another example")
        if not self.lengths or min(self.lengths) < self.block_size:
            raise ReplicationError(f"every length must be at least the {self.block_size} tokens of a block")


def run(config: Config, folder: RunFolder) -> None:
    """Contamination for each example, then copies at each length."""
    inputs = load_inputs(config, folder)
    model = inputs.model
    if max(config.lengths) + config.room > model.context_length:
        raise ReplicationError(f"lengths and room exceed the model's context of {model.context_length}: set lengths")
    done = folder.done(("kind", "example", "cell"))
    for number, example in enumerate(tqdm(inputs.examples, "contamination", unit="example")):
        questions = [inputs.prompts[at % config.n].segments[-1].ids for at in (number, number + 1)]
        for cell in CELLS:
            if ("contamination", example.id, cell) not in done:
                found = _second_answer(config, model, inputs.prompts[number], questions, cell == CELLS[0])
                folder.append({"kind": "contamination", "example": example.id, "cell": cell, **found})
    ids = tuple(token for prompt in inputs.prompts for token in prompt.ids)
    if len(ids) < max(config.lengths):
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, {max(config.lengths)} are needed: raise n")
    for length in tqdm(config.lengths, "copies", unit="length"):
        if ("copy", length, config.rounds - 1) not in folder.done(("kind", "length", "round")):
            _copies(config, folder, model, ids[:length])


@torch.inference_mode()
def _second_answer(
    config: Config, model: Model, prompt: ChunkedPrompt, questions: list[tuple[int, ...]], copied: bool
) -> dict:
    """Two questions over one prefilled context. kl: at the first token of the second answer, from the answer over a
    cache that never saw the first question. stale: tokens of the first that are still in the cache."""
    context = prompt.ids[: prompt.segments[-1].start]
    room = sum(map(len, questions)) + config.output
    shared = StaticCache(config=model.lm.config, max_cache_len=len(context) + room)
    _forward(model, context, shared)
    truth = _forward(model, questions[1], copy.deepcopy(shared))
    first, ids = copy.deepcopy(shared) if copied else shared, questions[0]
    for _ in range(config.output):
        ids = (int(_forward(model, ids, first).argmax()),)
    stale = int(shared.get_seq_length()) - len(context)
    return {"kl": kl(truth, _forward(model, questions[1], shared)).item(), "stale": stale}


def _forward(model: Model, ids: tuple[int, ...], cache: StaticCache) -> torch.Tensor:
    """Append `ids` to the cache; log-probabilities [vocabulary] after the last one."""
    output = model.lm(input_ids=model.tensor(ids), cache=cache, use_cache=True, logits_to_keep=1)
    return output.logits[0, -1].float().log_softmax(-1)


@torch.inference_mode()
def _copies(config: Config, folder: RunFolder, model: Model, ids: tuple[int, ...]) -> None:
    """What a request pays for the prefix `ids`: a deep copy; or pinning shared blocks (`share`), and gathering them
    into a cache of its own (`gather`), which transformers' models need and an engine's paged attention does not."""
    static = StaticCache(config=model.lm.config, max_cache_len=len(ids) + config.room)
    _forward(model, ids, static)
    nbytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in static.layers)
    blocks = PrefixCache(model, len(ids) // config.block_size + 1, config.block_size)
    blocks.prefill(ids)
    done = folder.done(("kind", "length", "round"))
    for number in range(-1, config.rounds):  # the first round warms up
        begun = time.perf_counter()
        copy.deepcopy(static)
        synchronize(model.device)
        seconds = {"deepcopy": time.perf_counter() - begun}
        found = blocks.prefill((*ids, ids[0])).report.seconds
        seconds |= {"share": found["lookup"], "gather": found["load"]}
        if number >= 0 and ("copy", len(ids), number) not in done:
            cell = {"kind": "copy", "length": len(ids), "round": number, "copied_bytes": nbytes}
            folder.append({**cell, "threads": torch.get_num_threads(), "seconds": seconds})


def summarise(records: list[dict], config: Config) -> dict:
    """KL of the second answer with and without the copy, and times by length; ratios are within a round."""
    lengths = {
        length: [r for r in records if r["kind"] == "copy" and r["length"] == length] for length in config.lengths
    }
    least, most = ([r["seconds"]["deepcopy"] for r in lengths[pick(lengths)]] for pick in (min, max))
    return {
        "contamination": {cell: _contamination(records, cell) for cell in CELLS},
        "lengths": {str(length): _length(rows) for length, rows in lengths.items()},
        "growth": median_iqr([b / a for a, b in zip(least, most, strict=True)]),
        "longest": _length(lengths[max(lengths)]),
        "n": config.n,
    }


def _contamination(records: list[dict], cell: str) -> dict:
    rows = [r for r in records if r["kind"] == "contamination" and r["cell"] == cell]
    return {"kl": mean_ci([r["kl"] for r in rows]), "stale": mean_ci([r["stale"] for r in rows])}


def _length(rows: list[dict]) -> dict:
    seconds = [r["seconds"] for r in rows]
    return {
        **{kind: median_iqr([s[kind] for s in seconds]) for kind in ("deepcopy", "share", "gather")},
        "share_over_copy": median_iqr([s["share"] / s["deepcopy"] for s in seconds]),
        "copied_mib": rows[0]["copied_bytes"] / 2**20,
        "threads": rows[0]["threads"],
    }


def plot(folder: Path) -> None:
    copies_figure(folder)
