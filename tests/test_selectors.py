"""What each selector picks, and how gradual filtering spends its budget."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import (
    BLENDING,
    a_prompt,
    filled,
    run,
    tokens,
)
from transformers import DynamicCache

from replication.errors import ReplicationError
from replication.methods import Chunks, Method, make_method
from replication.prompt import chain
from replication.selectors import SELECTORS
from replication.selectors.base import View
from replication.selectors.first_k import FirstK
from replication.selectors.hkvd import HKVD
from replication.stored import StoredKV


def a_view(tiny, lengths=(3, 5, 2), fresh=None, truth=None) -> View:
    """All tokens of these chunks as candidates; their stored KV is that of the chunks, moved."""
    model, prompt = tiny("llama"), a_prompt((1, *lengths))
    stored = StoredKV(model, prompt.ids, Chunks().find(model, prompt, filled(model, prompt)))
    candidates = torch.arange(1, 1 + sum(lengths))
    base = tuple(t[0][:, candidates] for t in stored.layer(1))
    return View(1, candidates, fresh(*base) if fresh else base, base, stored, truth)


@given(st.integers(0, 10))
@settings(deadline=None, max_examples=11)
def test_first_k_takes_every_chunks_kth_token_before_any_next(tiny, n):
    offsets = [*range(3), *range(5), *range(2)]
    picked = sorted(offsets[i] for i in FirstK().pick(a_view(tiny), n).tolist())
    assert picked == sorted(offsets)[:n]


@given(st.integers(1, 40), st.data())
@settings(deadline=None, max_examples=40)
def test_uniform_strides(tiny, m, data):
    n = data.draw(st.integers(1, m))
    picked = SELECTORS["uniform"]().pick(a_view(tiny, (m,)), n).tolist()
    assert len(picked) == n
    gaps = [b - a for a, b in pairwise(picked)]
    assert set(gaps) <= {m // n, -(-m // n)} - {0}
    assert 0 <= picked[0] <= m // n
    assert picked[-1] < m
    assert m - 1 - picked[-1] <= m // n


def test_random_repeats_and_differs_by_seed_and_prompt(tiny):
    view, other = a_view(tiny, (30, 30)), a_view(tiny, (31, 29))
    pick = SELECTORS["random"]().pick(view, 20).tolist()
    assert len(set(pick)) == 20
    torch.manual_seed(5)
    assert SELECTORS["random"]().pick(view, 20).tolist() == pick
    assert SELECTORS["random"](seed=1).pick(view, 20).tolist() != pick
    assert SELECTORS["random"]().pick(other, 20).tolist() != pick


def deviating(k_at: list[int], v_at: list[int]):
    """Fresh KV that is the stored one but for these tokens, the later the more."""

    def fresh(keys, values):
        keys, values = keys.clone(), values.clone()
        for step, (k, v) in enumerate(zip(k_at, v_at, strict=True)):
            keys[:, k] += 1 + step
            values[:, v] += 1 + step
        return keys, values

    return fresh


def test_hkvd_takes_the_tokens_whose_kv_deviates_most(tiny):
    view = a_view(tiny, fresh=deviating([2, 6, 4], [9, 1, 6]))
    assert HKVD(deviation="K").pick(view, 2).tolist() == [4, 6]
    assert HKVD(deviation="V").pick(view, 2).tolist() == [6, 1]
    assert HKVD(deviation="KV").pick(view, 2).tolist() == [6, 4]  # 2 + 3 against 3
    assert set(SELECTORS["lowest"](deviation="KV").pick(view, 5).tolist()) == {0, 3, 5, 7, 8}


@given(st.integers(1, 40), st.floats(0, 0.5), st.sampled_from(["K", "V", "KV"]))
@settings(deadline=None, max_examples=30)
def test_hkvd_and_lowest_are_disjoint_up_to_one_half(tiny, n, ratio, deviation):
    model, prompt = tiny("llama"), a_prompt((1, n))
    store = filled(model, prompt)
    high, low = (
        Method(name, Chunks(), SELECTORS[name](ratio, deviation=deviation))
        .prefill(model, prompt, store)
        .report.selected
        for name in ("hkvd", "lowest")
    )
    assert len(high) == len(low)
    assert len({*high, *low}) == min(n, len(high) + len(low))


def test_oracle_looks_at_the_truth_in_every_layer(tiny):
    view = a_view(tiny)
    truth = DynamicCache()
    for index in range(4):
        truth.update(*(t.clone() for t in view.kv.layer(index)), index)
    truth.layers[2].keys[:, :, 1 + 7] += 3
    truth.layers[3].values[:, :, 1 + 4] += 4
    view = a_view(tiny, fresh=deviating([0, 1, 2], [0, 1, 2]), truth=truth)
    assert set(SELECTORS["oracle"]().pick(view, 2).tolist()) == {7, 4}


@pytest.mark.parametrize("ratio", [-0.1, 1.0001, 15, float("nan")])
@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_ratio_outside_0_to_1_is_refused(name, ratio):
    with pytest.raises(ReplicationError, match=r"ratio .* is outside 0\.\.1"):
        SELECTORS[name](ratio)


@pytest.mark.parametrize("name", BLENDING)
def test_a_method_refuses_a_ratio_outside_0_to_1(name):
    with pytest.raises(ReplicationError, match=r"outside 0\.\.1"):
        make_method(name, 1.5)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [({"check_layer": -1}, "negative"), ({"deviation": "Q"}, "K, V, KV"), ({"schedule": "sudden"}, "fixed, gradual")],
)
def test_settings_that_mean_nothing_are_refused(settings_, message):
    with pytest.raises(ReplicationError, match=message):
        HKVD(0.1, **settings_)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ReplicationError, match=r"unknown selector 'hkdv'; did you mean hkvd"):
        SELECTORS["hkdv"]
    with pytest.raises(ReplicationError, match=r"unknown method 'cacheblend'; did you mean .*cacheblend-paper"):
        make_method("cacheblend")


@given(st.integers(2, 60), st.floats(0.001, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_gradual_filtering_spends_the_budget_on_average(tiny, n, ratio, taper):
    model = tiny("llama")
    prompt = chain([("prefix", (3,)), ("passage", tokens(n, n)), ("question", (5, 6))])
    selector = HKVD(ratio, schedule="gradual", taper=taper)
    report = Method("gradual", Chunks(), selector).prefill(model, prompt, filled(model, prompt)).report
    chosen = [rows - 2 for rows in report.rows]
    assert chosen[0] == n
    assert chosen[1:] == sorted(chosen[1:], reverse=True)
    assert abs(sum(chosen[1:]) / 3 - ratio * n) <= 1
    assert len(report.selected) == chosen[-1]


def test_gradual_filtering_first_narrows_by_what_the_check_layer_replaced(tiny):
    """Written-back rows must not hide the stored KV from the next choice, which would then be one between zeros."""
    seen = []

    class Spy(HKVD):
        def score(self, view):
            seen.append((view.layer, view.candidates, super().score(view)))
            return seen[-1][2]

    model, prompt = tiny("llama"), a_prompt((3, 20, 20))
    selector = Spy(0.4, schedule="gradual")
    Method("spied", Chunks(), selector).prefill(model, prompt, filled(model, prompt))
    (layer, all_rows, at_check), (again, kept, after) = seen[:2]
    assert layer == again == selector.check_layer
    before = {int(row): score for row, score in zip(all_rows, at_check, strict=True)}
    assert torch.allclose(after, torch.stack([before[int(row)] for row in kept]), rtol=1e-3)


def test_gradual_filtering_starts_where_the_first_choice_is_everything(tiny):
    model, prompt = tiny("llama"), chain([("passage", (9,)), ("passage", tokens(48, 1)), ("question", (5, 6))])
    store = filled(model, chain([("passage", tokens(48, 1)), ("question", (5, 6))]))
    method = Method("gradual", Chunks(), HKVD(0.92, schedule="gradual", taper=0.95))
    rows = method.prefill(model, prompt, store).report.rows
    assert rows[1] == len(prompt) > rows[2] > rows[3]


def test_gradual_filtering_in_the_last_layer_alone_spends_the_budget(tiny):
    model, prompt = tiny("llama"), a_prompt((1, 40))
    method = Method("gradual", Chunks(), HKVD(0.5, check_layer=3, schedule="gradual"))
    assert len(method.prefill(model, prompt, filled(model, prompt)).report.selected) == 20


def test_gradual_filtering_narrows(tiny):
    """Later choices are made among the earlier ones, and really fewer."""
    model, prompt = tiny("llama"), a_prompt((1, 40, 40))
    report = run(model, "cacheblend-paper", prompt, 0.3).report
    fixed = run(model, "cacheblend-author", prompt, 0.3).report
    assert report.rows[1] > fixed.rows[1] > report.rows[3]
    assert report.rows[1] > report.rows[2] > report.rows[3]
