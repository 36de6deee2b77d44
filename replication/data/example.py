"""What every data set yields, and how a set is loaded, checked and identified."""

import hashlib
import inspect
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from replication.errors import ReplicationError
from replication.registry import Registry
from replication.task import QA, Task


@dataclass(frozen=True)
class Passage:
    """A retrieved document: a title and its plain text."""

    title: str
    text: str


@dataclass(frozen=True)
class RagExample:
    """A question over passages.

    answers: gold answers, any of which is right, or the reference summary. distractors: wrong answers of the kind asked
    for, to rank the gold answer against. supports: indices into passages of those that are needed to answer.
    """

    id: str
    passages: tuple[Passage, ...]
    question: str
    answers: tuple[str, ...]
    distractors: tuple[str, ...]
    supports: tuple[int, ...]

    @property
    def holders(self) -> tuple[int, ...]:
        """Indices of the passages in which a gold answer stands, in any letter case."""
        golds = [answer.lower() for answer in self.answers]
        texts = [f"{p.title}\n{p.text}".lower() for p in self.passages]
        return tuple(k for k, text in enumerate(texts) if any(gold in text for gold in golds))

    @property
    def answerable(self) -> bool:
        """Whether a gold answer stands in the passages at all."""
        return bool(self.holders)


@dataclass(frozen=True)
class Loaded:
    """Examples and where they came from; provenance is JSON-ready and holds no path of this machine."""

    examples: list[RagExample]
    provenance: dict


@dataclass(frozen=True)
class Dataset:
    """A registered set.

    make(n=, seed=, passages=, ...) -> (examples, source), where source is a dict with at least the key 'source'.
    Its signature names the parameters that the set takes. supports: passages that an answer needs. task: what is asked.
    """

    make: Callable[..., tuple[list[RagExample], dict]]
    supports: int
    task: Task = QA


DATASETS = Registry("data set")


def load(
    name: str, n: int, seed: int = 0, passages: int | None = None, data_dir: str | Path | None = None, **params
) -> Loaded:
    """The first n examples of a set for a seed; a larger n extends the list and changes nothing in it.

    passages: passages per example (None: the set's default). data_dir: folder of local data files, for the sets that
    have one; defaults to the environment variable REPLICATION_DATA. params: the set's own parameters.
    Raises ReplicationError for an unknown name or parameter, a bad value, or an example with an empty part.
    """
    dataset = DATASETS[name]
    given = {"n": n, "seed": seed, **params} | ({} if passages is None else {"passages": passages})
    arguments = _arguments(name, dataset, given, data_dir)
    examples, source = dataset.make(**arguments)
    for example in examples:
        _check(example)
    repeated = next((id for id, count in Counter(e.id for e in examples).items() if count > 1), None)
    if repeated is not None:
        raise ReplicationError(f"two examples of data set '{name}' have the id {repeated}; ids must differ")
    recorded = {key: value for key, value in arguments.items() if key != "data_dir"}
    return Loaded(
        examples, {"dataset": name, **source, "params": recorded, "examples_sha256": examples_sha256(examples)}
    )


def examples_sha256(examples: list[RagExample]) -> str:
    """SHA-256 (hex) of the examples' canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps([asdict(e) for e in examples], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _arguments(name: str, dataset: Dataset, given: dict, data_dir: str | Path | None) -> dict:
    """All arguments of the set's make, defaults filled in and the common ones checked."""
    signature = inspect.signature(dataset.make)
    unknown = sorted(set(given) - set(signature.parameters))
    if unknown:
        takes = ", ".join(p for p in signature.parameters if p != "data_dir")
        raise ReplicationError(f"data set '{name}' has no parameter {', '.join(unknown)}; it takes {takes}")
    if "data_dir" in signature.parameters:
        given["data_dir"] = data_dir or os.environ.get("REPLICATION_DATA")
    bound = signature.bind(**given)
    bound.apply_defaults()
    arguments = bound.arguments
    if arguments["n"] < 1:
        raise ReplicationError(f"n must be at least 1 example, got {arguments['n']}")
    if arguments["passages"] < dataset.supports:
        least = f"at least {dataset.supports} passage{'s' * (dataset.supports > 1)} an example"
        raise ReplicationError(f"data set '{name}' needs {least}, got {arguments['passages']}")
    return arguments


def _check(example: RagExample) -> None:
    """Raise ReplicationError when a part that a prompt or a metric needs is empty or no text."""
    parts = {
        "question": (example.question,),
        "passage": tuple(p.text for p in example.passages),
        "answer": example.answers,
    }
    for part, texts in parts.items():
        if not all(isinstance(text, str) for text in texts):
            raise ReplicationError(f"example {example.id}: its {part} is no text")
        if not texts or not all(text.strip() for text in texts):
            raise ReplicationError(f"example {example.id} has an empty {part}")
