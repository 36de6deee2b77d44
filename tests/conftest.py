"""Models that the tests share: the packaged real one, and tiny random ones of several families."""

import functools
import json

import pytest
import torch
from families import FAMILIES, SLIDING, VOCABULARY, WINDOW, tiny_lm
from transformers import AutoTokenizer

from replication.data.mooncake import FILE
from replication.embedded import embedded_directory
from replication.model import Model, load_model, wrap
from replication.runner import run_one

__all__ = ["FAMILIES", "SLIDING", "VOCABULARY", "WINDOW", "tiny_lm", "tiny_model"]

# tests are many small forwards, on which threads only wait for each other
torch.set_num_threads(1)


@functools.cache
def tiny_model(family: str) -> Model:
    return wrap(f"tiny-{family}", tiny_lm(family))


@pytest.fixture(scope="session")
def tiny():
    """tiny(family): a tiny random Model."""
    return tiny_model


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> str:
    """A directory with a tiny random model and the real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    tiny_lm("llama", vocab_size=len(tokenizer), max_position_embeddings=4096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def trace_dir(tmp_path_factory) -> str:
    """A directory with a trace of four requests, in Mooncake's format."""
    folder = tmp_path_factory.mktemp("trace")
    requests = [
        {"timestamp": 0, "input_length": 1200, "output_length": 100, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1200, "output_length": 100, "hash_ids": [0, 1, 3]},
        {"timestamp": 9000, "input_length": 1500, "output_length": 600, "hash_ids": [0, 1, 2]},
        {"timestamp": 9500, "input_length": 300, "output_length": 5, "hash_ids": [4]},
    ]
    (folder / FILE).write_text("".join(json.dumps(request) + "\n" for request in requests))
    return str(folder)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """Real weights: SmolLM2-135M-Instruct in fp32."""
    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def finished(configs, tmp_path_factory):
    """finished(name): the results folder of an experiment, which is run once with the module's `configs`."""
    root = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda name: run_one(name, configs[name], root))


@pytest.fixture
def summary_of(finished):
    return lambda name: json.loads((finished(name) / "summary.json").read_text())
