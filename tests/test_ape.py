"""APE: its merge of two softmaxes by the formula, and its positions against a plain forward of the model."""

import pytest
import torch
from conftest import FAMILIES, SLIDING
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import NEUTRAL, a_prompt, assert_close, kv, run, run_method, tokens

from replication.decode import answer_logprobs
from replication.errors import ReplicationError
from replication.methods import make_method
from replication.methods.ape import Tempered
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain
from replication.store import MemoryStore
from replication.tempered_attention import tempered_weights


def merged(scores: torch.Tensor, contexts: torch.Tensor, temperature: float, scale: float) -> torch.Tensor:
    """As APE's code writes it: two softmaxes, weighted by a softmax over their (scaled) log-sum-exps."""
    inside, outside = scores[..., contexts] / temperature, scores[..., ~contexts]
    lse = torch.stack([inside.logsumexp(-1) * scale * temperature, outside.logsumexp(-1)], -1).softmax(-1)
    weights = torch.zeros_like(scores)
    weights[..., contexts] = inside.softmax(-1) * lse[..., :1]
    weights[..., ~contexts] = outside.softmax(-1) * lse[..., 1:]
    return weights


def test_the_merge_by_hand():
    """Contexts ln 1 and ln 3 with T = 1/2 have logits ln 1 and ln 9, lse ln 10; times S T = 1/2 it is ln sqrt(10). The
    other key has ln 2: the contexts get sqrt(10) / (sqrt(10) + 2), shared 1 to 9."""
    weights = tempered_weights(torch.tensor([1.0, 3.0, 2.0]).log(), torch.tensor([True, True, False]), 0.5, 1.0)
    inside = 10**0.5 / (10**0.5 + 2)
    assert weights.tolist() == pytest.approx([0.1 * inside, 0.9 * inside, 1 - inside])


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.booleans()), min_size=2, max_size=9), st.floats(0.2, 2), st.floats(0.2, 2)
)
@settings(deadline=None)
def test_the_merge_is_that_of_two_softmaxes(keys, temperature, scale):
    scores = torch.tensor([score for score, _ in keys], dtype=torch.float64)
    contexts = torch.tensor([inside for _, inside in keys])
    weights = tempered_weights(scores, contexts, temperature, scale)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    if contexts.any() and not contexts.all():
        torch.testing.assert_close(weights, merged(scores, contexts, temperature, scale))
    elif not contexts.any():
        torch.testing.assert_close(weights, scores.softmax(-1))
    torch.testing.assert_close(tempered_weights(scores, contexts, 1.0, 1.0), scores.softmax(-1))


def test_a_row_that_sees_no_context_attends_as_ever():
    scores = torch.tensor([[float("-inf"), 1.0, 2.0], [0.5, 1.0, 2.0]])
    weights = tempered_weights(scores, torch.tensor([True, False, False]), 0.9, 0.9)
    assert torch.equal(weights[0], scores[0].softmax(-1))
    assert not torch.isnan(weights).any()


@torch.inference_mode()
def in_parallel(model: Model, prompt: ChunkedPrompt, answer: tuple[int, ...] = ()) -> torch.Tensor:
    """Logits of the question's and the answer's tokens in one forward of the model: every passage right behind the
    prefix and seeing nothing else, the question behind the longest passage and seeing all."""
    n, prefix, asked = len(prompt) + len(answer), len(prompt.prefix_ids), prompt.segments[-1].start
    positions, seen = torch.arange(n), torch.ones(n, n).tril().bool()
    passages = [s for s in prompt.segments if s.kind == "passage"]
    for passage in passages:
        positions[passage.start : passage.stop] -= passage.start - prefix
        seen[passage.start : passage.stop, prefix : passage.start] = False
    positions[asked:] -= asked - prefix - max(len(s.ids) for s in passages)
    output = model.lm(
        input_ids=model.tensor((*prompt.ids, *answer)),
        position_ids=positions[None],
        attention_mask=seen[None, None],
        use_cache=False,
    )
    return output.logits[0, asked:]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in SLIDING])
def test_without_temperature_and_scale_it_is_parallel_attention_at_the_same_positions(tiny, family):
    model, prompt, answer = tiny(family), a_prompt(), tokens(4, 9)
    result = run_method(model, NEUTRAL["ape"], prompt)
    expected = in_parallel(model, prompt, answer).log_softmax(-1)
    assert_close([result.logits.log_softmax(-1)], [expected[3]])
    assert_close([answer_logprobs(model, result, answer)], [expected[3:-1]])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_is_attended_to_as_the_question_is(tiny, family):
    """An answer's tokens decoded behind the question have the logits of these tokens as the question's own."""
    model, prompt, answer = tiny(family), a_prompt(), tokens(3, 9)
    parts = [(s.kind, s.ids) for s in prompt.segments]
    longer = chain([*parts[:-1], ("question", (*parts[-1][1], *answer))])
    result, whole = run(model, "ape", prompt), run(model, "ape", longer)
    behind = answer_logprobs(model, result, (*answer, 5))
    assert_close([behind[-1]], [whole.logits.log_softmax(-1)])
    assert result.cache.get_seq_length() == len(prompt)
    plain = run_method(model, NEUTRAL["ape"], prompt)
    assert not torch.allclose(plain.logits, result.logits, atol=1e-4)
    assert_close(kv(result.cache, slice(prompt.segments[-1].start)), kv(plain.cache, slice(prompt.segments[-1].start)))


def test_passages_share_their_positions(tiny):
    model, prompt, store = tiny("llama"), a_prompt((5, 11, 1, 7)), MemoryStore()
    source = make_method("ape").source
    source.learn(model, prompt, store)
    pieces = source.find(model, prompt, store)
    assert [p.position for p in pieces] == [8, 13, 13, 13]
    assert [p.target for p in pieces] == [0, 5, 16, 17]


def test_the_model_is_left_as_it_was(tiny):
    model, prompt = tiny("llama"), a_prompt()
    before = run(model, "full", prompt).logits
    result = run(model, "ape", prompt)
    answer_logprobs(model, result, (3, 4))
    assert torch.equal(run(model, "full", prompt).logits, before)


@pytest.mark.parametrize("settings_", [(0, 0.9), (0.9, -1), (float("nan"), 0.9)])
def test_settings_that_mean_nothing_are_refused(settings_):
    with pytest.raises(ReplicationError, match="must both be above 0"):
        Tempered(*settings_)
