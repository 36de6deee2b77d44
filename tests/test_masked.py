"""The factorial's two ends are the real things, and its levels mask what they say."""

import pytest
import torch
from conftest import FAMILIES, SLIDING
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.masked import CROSSES, POSITIONS, SINKS, Faults, masked_prefill, position_ids, visible
from replication.methods import Chunks, Method, make_method
from replication.methods.base import Nothing
from replication.prompt import chain
from replication.selectors import Selector
from replication.store import MemoryStore

NAIVE = Faults("stored", "own", "absent")


def a_prompt():
    return chain([("prefix", (3, 4, 5)), ("passage", (6, 7, 8, 9)), ("passage", (10, 11)), ("question", (12, 13, 14))])


def filled_by(model, prompt, method):
    store = MemoryStore()
    method.learn(model, prompt, store)
    return method.prefill(model, prompt, store)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("faults", "method"),
    [
        (Faults(), Method("full", Nothing(), Selector(ratio=0))),
        (NAIVE, Method("naive", Chunks(move=False), Selector(ratio=0))),
        (Faults("repaired", "own", "absent"), Method("repaired", Chunks(), Selector(ratio=0))),
        (Faults("stored", "shared", "absent"), Method("shared", Chunks(False, behind_prefix=True), Selector(ratio=0))),
    ],
)
def test_ends_of_the_factorial_are_real_methods(tiny, family, faults, method):
    if family in SLIDING and method.name == "shared":
        pytest.skip("in its place a passage's window has left the prefix behind; built right behind it, it sees it")
    model, prompt = tiny(family), a_prompt()
    masked, real = masked_prefill(model, prompt, faults), filled_by(model, prompt, method)
    assert torch.allclose(masked.logits, real.logits, atol=1e-4)
    for left, right in zip(masked.cache.layers, real.cache.layers, strict=True):
        assert torch.allclose(left.keys, right.keys, atol=1e-4)
        assert torch.allclose(left.values, right.values, atol=1e-4)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from(SINKS), st.sampled_from(CROSSES))
@settings(deadline=None, max_examples=40)
def test_what_each_level_lets_a_token_see(lengths, sink, cross):
    prompt = chain([("prefix", (1, 2)), *[("passage", (5,) * n) for n in lengths], ("question", (9,))])
    seen = visible(prompt, Faults("repaired", sink, cross))
    passages = [s for s in prompt.segments if s.kind == "passage"]
    for p in passages:
        assert seen[p.start : p.stop, p.start : p.stop].all()
        assert seen[p.start, : p.start].any() == (sink == "shared")
        assert seen[-1, p.start] == (sink != "dropped")
        assert seen[-1, p.start + 1 : p.stop].all()
        for earlier in passages[: passages.index(p)]:
            body = seen[p.start + 1 : p.stop, earlier.start + 1 : earlier.stop]
            assert body.all() if cross == "recomputed" else not body.any()


def test_stored_positions_restart_where_the_passage_was_prefilled():
    prompt = a_prompt()
    assert position_ids(prompt, Faults()).tolist() == list(range(len(prompt)))
    assert position_ids(prompt, NAIVE).tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 9, 10, 11]
    behind = Faults("stored", "shared", "absent")
    assert position_ids(prompt, behind).tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4, 9, 10, 11]


@pytest.mark.parametrize("position", POSITIONS)
def test_the_model_is_left_as_it_was(tiny, position):
    model, prompt = tiny("llama"), a_prompt()
    before = filled_by(model, prompt, make_method("full")).logits
    masked_prefill(model, prompt, Faults(position, "dropped", "absent"))
    assert torch.equal(filled_by(model, prompt, make_method("full")).logits, before)
