"""Every experiment with a language model of its own runs on Gemma-3-270M by the same command, small."""

import json

import pytest

from replication import cli
from replication.runner import find_experiments

MODEL = "gemma3-270m"
FEW = ["n=2", "passages=2"]
SMALL = {
    "ablations": FEW,
    "attention_deviation": [*FEW, "ratios=0.15,1"],
    "equal_budget": FEW,
    "kv_deviation": FEW,
    "loading": [
        "length=256",
        "chunk=64",
        "rates=0.1",
        "prices=1",
        "swept=0.1",
        "rounds=1",
        "profile=128,256",
        "entries=100",
    ],
    "naive_concatenation": [*FEW, "attention=1"],
    "peak_memory": ["dtypes=float32", "lengths=256", "chunk=64"],
    "picked_tokens": FEW,
    "power": ["n=3", "passages=2"],
    "prefix_cache": [
        "length=256",
        "cached=200",
        "block_sizes=16,64",
        "rounds=1",
        "unique_length=64",
        "unique_rounds=2",
        "probes=4",
    ],
    "prefix_copies": [*FEW, "output=2", "lengths=64,128", "rounds=1"],
    "prefix_exactness": [*FEW, "dtypes=float32", "output=4"],
    "prefix_traces": ["capacities=0.4,1"],
    "prefix_traffic": [*FEW, "seeds=2", "requests=500"],
    "quality": [*FEW, "values=0.15,1", "timed=1", "rounds=1"],
    "quality_vs_ttft": [*FEW, "ratios=0.15,1", "point_ratios=0.15", "timed=1", "rounds=1"],
    "request_cache": [
        "dtypes=float32",
        "lengths=64,128",
        "rounds=1",
        "steps=2",
        "chats=0",
        "windows=2",
        "context=64",
    ],
    "schedule": [*FEW, "ratios=0.15", "step=8"],
    "side_by_side": ["n=12", "uncached=1"],
    "throughput": [
        "n=2",
        "top=2",
        "live_seconds=2",
        "resamples=5",
        "sizes=1,2",
        "batch_length=128",
        "rounds=1",
        "output=2",
    ],
    "ttft": ["dtypes=float32", "lengths=256", "chunk=64", "rounds=1"],
    "ttft_scaling": ["n=4", "dtypes=bfloat16", "lengths=128,256", "chunk=64", "rounds=1"],
}
ELSEWHERE = {
    "lmcache_differences": "LMCache's blender runs Llama and Qwen2 alone",
    "prompt_cost": "the provider's model",
    "response_cache": "no model",
    "semantic_cache": "a model of embeddings",
    "semantic_index": "a model of embeddings",
    "serving": "needs vLLM servers of the model",
}


def test_every_experiment_is_here_or_says_why_not():
    assert sorted(SMALL | ELSEWHERE) == sorted(find_experiments())


@pytest.mark.gemma
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_runs_on_gemma(name, tmp_path, trace_dir):
    where = ["--model", MODEL, "--data-dir", trace_dir, "--out", str(tmp_path)]
    assert cli.main(["run", name, *where, "--set", *SMALL[name]]) == 0
    (summary,) = tmp_path.glob(f"{MODEL}/{name}/*/summary.json")
    assert json.loads(summary.read_text())
    assert summary.with_name("figure.png").stat().st_size > 10_000
