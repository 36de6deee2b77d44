"""What the quality experiment varies: the prompts at each value of a sweep."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.common import Inputs, RagConfig
from replication.caches.embedding import load_embedder
from replication.data import Loaded, RagExample, load
from replication.model import Model
from replication.prompt import ChunkedPrompt, build_prompt
from replication.registry import Registry
from replication.retrieval import nearest


@dataclass(frozen=True)
class Sweep:
    """values: the default ones; axis: their name in figures; least: the smallest that makes sense.

    passages(config, value): how many an example is loaded with. arrange(prompt, value): the prompt as it is asked;
    None where its chunks are the passages in their order. prompts: False where the values are recompute ratios, over
    one prompt an example.
    """

    values: tuple[float, ...]
    axis: str
    least: float
    passages: Callable[[RagConfig, float], int] = lambda config, value: config.passages
    arrange: Callable[[ChunkedPrompt, float], ChunkedPrompt] | None = None
    prompts: bool = True


def _permuted(prompt: ChunkedPrompt, number: float) -> ChunkedPrompt:
    """The number-th random order of the passages; number 0 is the order they came in."""
    order = list(range(sum(s.kind == "passage" for s in prompt.segments)))
    if number:
        random.Random(f"order-{number:g}").shuffle(order)
    return prompt.reordered(order)


SWEEPS = Registry("sweep")
SWEEPS["ratio"] = Sweep((0.02, 0.05, 0.1, 0.15, 0.3, 0.5, 1.0), "recompute ratio", least=0.001, prompts=False)
SWEEPS["chunks"] = Sweep((2, 4, 8, 16), "chunks in the prompt", least=1, passages=lambda config, value: int(value))
SWEEPS["length"] = Sweep(
    (64, 128, 256, 512), "tokens a chunk", least=1, arrange=lambda prompt, value: prompt.recut(int(value))
)
SWEEPS["order"] = Sweep((0, 1, 2, 3), "order of the chunks (number of a permutation)", least=0, arrange=_permuted)
SWEEPS["retrieval"] = Sweep((1, 2, 4, 8, 16), "retrieved chunks", least=1)


def sweep_inputs(config, model: Model) -> tuple[dict[float, Inputs], dict]:
    """Examples and prompts at each value of the config's sweep, and what identifies the data they come from."""
    make = _retrieved if config.sweep == "retrieval" else _loaded
    examples, identity = make(config)
    arrange = SWEEPS[config.sweep].arrange
    inputs = {}
    for value, found in examples.items():
        prompts = [build_prompt(e.passages, e.question, model.tokenizer, config.style, model.context) for e in found]
        inputs[value] = Inputs(model, found, [arrange(p, value) for p in prompts] if arrange else prompts)
    return inputs, identity


def load_value(config, value: float) -> Loaded:
    """The examples that the sweep's value asks for; ReplicationError when the data set does not have them."""
    n = config.pool if config.sweep == "retrieval" else config.n
    passages = SWEEPS[config.sweep].passages(config, value)
    return load(config.dataset, n, config.seed, passages, config.data_dir or None)


def _loaded(config) -> tuple[dict[float, list[RagExample]], dict]:
    loaded = {value: load_value(config, value) for value in config.prompt_values}
    return {v: one.examples for v, one in loaded.items()}, {f"{v:g}": one.provenance for v, one in loaded.items()}


def _retrieved(config) -> tuple[dict[float, list[RagExample]], dict]:
    """Each question over the chunks nearest to it, nearest first, among the passages of `pool` examples."""
    loaded, embedder = load_value(config, max(config.prompt_values)), load_embedder()
    pool = list(dict.fromkeys(p for example in loaded.examples for p in example.passages))
    asked = loaded.examples[: config.n]
    found = nearest(embedder, [e.question for e in asked], pool, int(max(config.prompt_values)))
    examples = {
        value: [
            _over(example, tuple(pool[i] for i in ranked[: int(value)]))
            for example, ranked in zip(asked, found, strict=True)
        ]
        for value in config.prompt_values
    }
    return examples, {"pool": loaded.provenance, "chunks": len(pool), "embedder": embedder.weights}


def _over(example: RagExample, passages: tuple) -> RagExample:
    needed = [example.passages[k] for k in example.supports]
    return replace(example, passages=passages, supports=tuple(passages.index(p) for p in needed if p in passages))
