"""Settings of the experiments on time and memory: prompts of given lengths in chunks of equal length."""

from dataclasses import dataclass

from experiments.common import RagConfig, require_dtypes, require_positive
from experiments.running_text import running_prompt
from replication.data import Loaded
from replication.errors import ReplicationError
from replication.model import Model
from replication.prompt import ChunkedPrompt


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

    def prompt(self, model: Model, loaded: Loaded, length: int) -> ChunkedPrompt:
        return running_prompt(model, loaded, length, self.chunk, self.prefix, self.fresh)
