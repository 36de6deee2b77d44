"""The experiment on per-request caches from config to figure on a tiny model, and the arithmetic of its summary."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import tiny_lm
from transformers import AutoTokenizer

from experiments.request_cache import Config
from experiments.request_cache_summary import summarise
from replication.bandwidth import BYTES, memory_seconds, weight_bytes
from replication.embedded import embedded_directory
from replication.errors import ReplicationError
from replication.records import RunFolder, without_seconds
from replication.runner import recorded, run_one


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    tiny_lm("llama", vocab_size=len(tokenizer), max_position_embeddings=2048).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    small = {"n": 8, "lengths": (16, 64), "rounds": 2, "steps": 3, "chats": 2, "turns": 3, "reply": 6}
    return Config(model=str(folder), **small, windows=2, context=64, continuation=5)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return run_one("request_cache", config, tmp_path_factory.mktemp("runs"))


def test_an_interrupted_run_ends_with_the_same_records_and_the_figure(config, finished, tmp_path):
    whole = RunFolder(finished, recorded(config)).records
    assert (finished / "figure.png").stat().st_size > 10_000
    again = RunFolder(tmp_path / "tiny" / "request_cache" / "synthetic", recorded(config))
    for record in whole[: len(whole) * 2 // 3]:
        again.append(record)
    run_one("request_cache", config, tmp_path)
    ended = RunFolder(again.path, recorded(config)).records
    assert without_seconds(ended) == without_seconds(whole)


def test_what_must_hold_on_any_model(config, finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["bytes_error"] == 0
    assert summary["survival_error"] == 0
    assert summary["places"]["float32 64"]["bytes"] == 64 * 2 * summary["places"]["bfloat16 64"]["bytes_per_token"]
    for dtype, tolerance in (("float32", 1e-3), ("bfloat16", 1)):
        chat = summary["chat"][dtype]
        assert chat["surplus"] == 1
        assert chat["parted"] == 0
        assert chat["edit"]["off_by"] == 0
        assert 0 < chat["edit"]["reused"]["mean"] < 1
        assert chat["logit_difference"] < tolerance
        assert summary["quantized"][dtype]["full"]["kl"]["mean"] == 0
        assert summary["quantized"][dtype]["fp8"]["bytes_ratio"]["mean"] > 1.5


def test_the_summarys_arithmetic(config, finished):
    """A step of 0.5 s, 1 s without the cache at 16 tokens and 8 s at 64, and a memory of one BYTES a second."""
    records = RunFolder(finished, recorded(config)).records
    for record in records:
        if record["kind"] == "step":
            without = {16: 1.0, 64: 8.0}[record["length"]]
            record["seconds"] = {"with": 0.5, "without": without, "rows": 0.75, "read": 1.0, "copy": 2.0}
            record["weights"] = BYTES // 4 - record["bytes"]
    summary = summarise(records, config)
    place = summary["places"]["float32 64"]
    assert place["speedup"]["median"] == 16
    assert place["rows"]["median"] == 1.5
    assert place["bound"]["median"] == 0.25
    assert place["bound_share"]["median"] == 0.5
    assert place["bandwidth"]["median"] == BYTES
    assert summary["growth"]["float32"]["without"]["median"] == pytest.approx(1.5)
    assert summary["growth"]["float32"]["with"]["median"] == 0


def test_a_model_without_a_chat_template_is_measured_without_chats(config, finished, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(config.model, folder)
    (folder / "chat_template.jinja").unlink()
    base = replace(config, model=str(folder))
    with pytest.raises(ReplicationError, match="no chat template: set chats=0"):
        run_one("request_cache", base, tmp_path)
    base = replace(base, chats=0)
    begun = RunFolder(tmp_path / "runs" / "base" / "request_cache" / "synthetic", recorded(base))
    for record in RunFolder(finished, recorded(config)).records:
        if record["kind"] != "turn":
            begun.append(record)
    run_one("request_cache", base, tmp_path / "runs")
    whole, summary = (json.loads((path / "summary.json").read_text()) for path in (finished, begun.path))
    assert summary == {**whole, "chat": {}}
    assert (begun.path / "figure.png").stat().st_size > 10_000


def test_weights_that_a_step_reads(smollm2, tiny):
    """SmolLM2's embedding is its head; of the tiny one's own embedding a step reads one row."""
    assert weight_bytes(smollm2) == 134_515_008 * 4
    weights = tiny("llama").lm.state_dict()
    unread = weights.pop("model.embed_tokens.weight")
    assert unread.shape == (97, 32)
    assert weight_bytes(tiny("llama")) == sum(w.nbytes for w in weights.values())


def test_memory_moves_at_a_possible_speed():
    for seconds in memory_seconds(torch.device("cpu")).values():
        assert 1e8 < BYTES / seconds < 1e12


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lengths": (512, 256)}, "rising"),
        ({"lengths": (512,)}, "two or more"),
        ({"turns": 30}, "need n = 90"),
        ({"chats": -1}, "chats must be 0 or more"),
        ({"context": 100}, "multiple of 64"),
        ({"continuation": 1}, "continuation 2 or more"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_a_bad_setting_is_refused(setting, message):
    with pytest.raises(ReplicationError, match=message):
        Config(**setting)


def test_a_context_that_does_not_fit_is_refused_before_anything_is_measured(config, tmp_path):
    longer = Config(**{**vars(config), "lengths": (16, 4096)})
    with pytest.raises(ReplicationError, match="context is 2048 tokens: set lengths"):
        run_one("request_cache", longer, tmp_path)
    wordy = Config(**{**vars(config), "reply": 600})
    with pytest.raises(ReplicationError, match="the model's context is 2048: lower turns or reply"):
        run_one("request_cache", wordy, tmp_path / "wordy")
