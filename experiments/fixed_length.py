"""One prompt of a given length in chunks of equal length: what the experiments on time and memory prefill."""

from dataclasses import dataclass

from experiments.common import RagConfig, require_dtypes, require_positive
from replication.data import Loaded
from replication.errors import ReplicationError
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain, passage_text


@dataclass(frozen=True)
class FixedLengthConfig(RagConfig):
    """lengths: prompt tokens: a shared prefix of `prefix` tokens, chunks of `chunk` tokens, and a question of `fresh`
    tokens; every dtype of `dtypes` is measured, `dtype` is not used."""

    n: int = 40
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    lengths: tuple[int, ...] = (2048,)
    chunk: int = 256
    prefix: int = 32
    fresh: int = 32
    ratio: float = 0.15

    def __post_init__(self):
        require_positive(self, "n", "chunk", "prefix", "fresh")
        require_dtypes(self.dtypes)
        if not self.lengths or min(self.lengths) <= self.prefix + self.fresh:
            raise ReplicationError(
                f"every length must exceed the {self.prefix + self.fresh} tokens of prefix and question"
            )


def fixed_prompt(config: FixedLengthConfig, model: Model, loaded: Loaded, length: int) -> ChunkedPrompt:
    """Running text of the data set, cut into the prefix, chunks of equal length (the last may be shorter), and the
    question."""
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    if length > model.context_length:
        raise ReplicationError(f"{length} tokens exceed the model's context of {model.context_length}: set lengths")
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) < length:
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, {length} are needed: raise n")
    stop = length - config.fresh
    spans = [(at, min(at + config.chunk, stop)) for at in range(config.prefix, stop, config.chunk)]
    passages = [("passage", ids[a:b]) for a, b in spans]
    return chain([("prefix", ids[: config.prefix]), *passages, ("question", ids[stop:length])])
