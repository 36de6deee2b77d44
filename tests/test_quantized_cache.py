"""Quantized KV caches: bytes by arithmetic, what cannot be done with them, and refusals that give the reason."""

import pytest
import torch
from conftest import tiny_lm, tiny_model
from transformers.utils import is_hqq_available

from replication.caches.kept import KeptCache
from replication.caches.quantized import make_cache, problem
from replication.caches.request import WithCache, decode, follow, tensor_bytes
from replication.errors import ReplicationError
from replication.model import Model, wrap

LAYERS, HEADS, DIM = 4, 2, 64


@pytest.fixture(scope="module")
def model() -> Model:
    """Tiny, but with the head dim of the real one, so that a token and head make one group."""
    return wrap("tiny", tiny_lm("llama", head_dim=DIM))


def usable(kind: str) -> None:
    if kind.startswith("quanto"):
        pytest.importorskip("optimum.quanto")


@pytest.mark.parametrize(
    ("kind", "bits", "scales"),
    [
        ("fp8", 8, 2 * LAYERS * 4),  # one fp32 scale for K and one for V per layer
        ("quanto-int4", 4, None),
        ("quanto-int2", 2, None),
        ("quanto-int4-channel", 4, None),
        ("quanto-int2-channel", 2, None),
    ],
)
def test_bytes_by_arithmetic(model, kind, bits, scales):
    usable(kind)
    values = LAYERS * 2 * HEADS * 128 * DIM
    if scales is None:
        scales = values // 64 * 8  # fp32 scale and shift for each group of 64
    decoder = WithCache(model, make_cache(kind, model))
    decoder.advance(tuple(i % 97 for i in range(128)))
    assert tensor_bytes(decoder.cache) == values * bits // 8 + scales


@pytest.mark.parametrize("kind", ["fp8", "quanto-int4", "quanto-int4-channel"])
def test_lengths_hold_beyond_the_full_precision_rest(model, kind):
    """User report 35: 128 decoded tokens are kept as they are, then all is quantized anew."""
    usable(kind)
    prompt, ids = tuple(range(64)), tuple(i % 97 for i in range(140))
    decoder = WithCache(model, make_cache(kind, model))
    followed = follow(decoder, prompt, ids)  # compares get_seq_length after every forward
    assert decoder.cache.get_seq_length() == 64 + 139
    exact = follow(WithCache(model), prompt, ids).logits.log_softmax(-1)
    kl = (exact.exp() * (exact - followed.logits.log_softmax(-1))).sum(-1)
    assert kl[0] < 1e-6  # the prefill itself attends to what it computed, before it is quantized
    assert 1e-6 < kl[1:].mean() < 0.2


def test_fewer_bits_are_worse(model):
    pytest.importorskip("optimum.quanto")
    prompt, ids = tuple(i % 97 for i in range(64)), tuple(range(40))
    exact = follow(WithCache(model), prompt, ids).logits.log_softmax(-1)

    def kl(kind: str) -> float:
        other = follow(WithCache(model, make_cache(kind, model)), prompt, ids).logits.log_softmax(-1)
        return (exact.exp() * (exact - other)).sum(-1).mean().item()

    assert kl("full") < 1e-6 < kl("fp8") < kl("quanto-int4") < kl("quanto-int2")


def test_cropping_does_not_work_so_a_kept_cache_starts_over(model):
    """User report 35."""
    cache = make_cache("fp8", model)
    assert not cache.is_croppable
    kept = KeptCache(model, lambda: make_cache("fp8", model))
    first = kept.answer((1, 2, 3, 4), 4)[0]
    assert kept.answer((*kept.ids, 5), 4)[1].reused == 7
    again, reuse = kept.answer((1, 2, 3, 4), 4)
    assert (reuse.reused, reuse.parted) == (0, 4)
    assert torch.equal(again.logits, first.logits)


def test_quanto_ignores_a_crop(model):
    """User report 35: no error, and the tokens stay."""
    pytest.importorskip("optimum.quanto")
    decoder = WithCache(model, make_cache("quanto-int4", model))
    decode(decoder, tuple(range(64)), 4)
    decoder.cache.crop(-2)
    assert decoder.cache.get_seq_length() == 67


@pytest.mark.parametrize("kind", ["fp8", "quanto-int4"])
@torch.inference_mode()
def test_a_reordered_batch_goes_on_in_the_new_order(model, kind):
    """User report 35."""
    usable(kind)
    prompts, last = torch.tensor([range(64), range(20, 84)]), torch.tensor([[7], [9]])

    def after(order):
        cache = make_cache(kind, model)
        model.lm(input_ids=prompts, cache=cache)
        cache.reorder_cache(torch.tensor(order))
        return model.lm(input_ids=last[order], cache=cache).logits

    kept, swapped = after([0, 1]), after([1, 0])
    assert (kept[0] - kept[1]).abs().max() > 1e-2
    assert torch.allclose(swapped[[1, 0]], kept, atol=1e-5)


def test_what_cannot_be_made_says_why(model):
    pytest.importorskip("optimum.quanto")
    with pytest.raises(ReplicationError, match=r"\[`2`, `4`\] but got 8"):
        make_cache("quanto-int8", model)


@pytest.mark.skipif(is_hqq_available(), reason="hqq is installed")
def test_what_is_not_installed_says_so(model):
    assert "install `HQQ`" in problem("hqq-int8", model)


def test_sliding_windows_cannot_be_quantized():
    assert "only full attention" in problem("fp8", tiny_model("gemma3_text"))


def test_an_unknown_kind_names_the_nearest(model):
    with pytest.raises(ReplicationError, match="unknown KV cache 'quanto-int5'; did you mean quanto-int"):
        make_cache("quanto-int5", model)
