"""Deviation of KV and attention by hand, and what their summaries keep to."""

import numpy as np
import pytest
import torch
from conftest import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from prefills import a_prompt
from scipy.stats import spearmanr

from experiments.ablation_variants import Keys
from experiments.reuse_common import candidates, full_prefill, reused
from replication.metrics.deviation import delta_attn, delta_kv, rank_correlations, squared, top_shares
from replication.selectors.base import View

DEVIATIONS = arrays(float, st.tuples(st.integers(2, 5), st.integers(3, 40)), elements=st.floats(0.01, 100), unique=True)


def test_deviations_by_hand():
    a = torch.zeros(2, 3, 2)
    b = a.clone()
    b[0, 1] = torch.tensor([1.0, -2.0])
    b[1, 1, 0] = 3.0
    assert delta_kv(a, b).tolist() == [0, 6, 0]
    assert squared(a, b).tolist() == [0, 14, 0]
    # one head differs by 3 and 4 in two entries, the other by nothing
    assert delta_attn(torch.zeros(2, 2, 3), torch.tensor([[[3.0, 0, 0], [0, 0, 4]], [[0, 0, 0], [0, 0, 0]]])) == 2.5


@given(DEVIATIONS)
@settings(deadline=None, max_examples=40)
def test_top_shares_rise_from_at_least_even_to_all(deviation):
    tops = (0, 0.1, 0.5, 1)
    shares = top_shares(deviation, tops)
    assert shares.shape == (len(deviation), 4)
    assert (np.diff(shares, axis=1) >= 0).all()
    tokens = deviation.shape[1]
    assert (shares >= [round(t * tokens) / tokens - 1e-9 for t in tops]).all()
    assert shares[:, -1] == pytest.approx(1)


def test_top_shares_by_hand():
    assert top_shares(np.array([[1, 6, 2, 1], [5, 5, 5, 5]]), (0.25, 0.5)).tolist() == [[0.6, 0.8], [0.25, 0.5]]


@given(DEVIATIONS)
@settings(deadline=None, max_examples=40)
def test_rank_correlations_are_spearmans(deviation):
    matrix = rank_correlations(deviation)
    assert matrix == pytest.approx(matrix.T)
    assert matrix.diagonal() == pytest.approx(1)
    assert matrix[0, 1] == pytest.approx(spearmanr(deviation[0], deviation[1]).statistic)
    assert rank_correlations(deviation**3) == pytest.approx(matrix)


@pytest.mark.parametrize("family", FAMILIES)
def test_squared_deviation_of_keys_is_the_same_before_and_after_rotation(tiny, family):
    model, prompt = tiny(family), a_prompt((3, 20, 9))
    stored, full = reused(model, prompt), full_prefill(model, prompt).cache.layers[2]
    tokens = candidates(stored)
    fresh, kept = ((k[0][:, tokens], v[0][:, tokens]) for k, v in ((full.keys, full.values), stored.layer(2)))
    view = View(2, tokens, fresh, kept, stored, None)
    rotation, angles = model.rotation, model.rotation.angles(-tokens, torch.float32)
    pair = [t[0].clone() for t in (fresh, kept)]
    for keys in pair:
        rotation.move(2, keys, angles)
    assert torch.allclose(squared(*pair), squared(fresh[0], kept[0]), rtol=1e-3)
    assert torch.allclose(Keys(rotated=False).score(view), delta_kv(*pair))
    assert torch.equal(Keys().score(view), delta_kv(fresh[0], kept[0]))


def test_what_is_exact_is_no_candidate(tiny):
    prompt = a_prompt((3, 20, 9))
    assert candidates(reused(tiny("llama"), prompt)).tolist() == list(range(3, 32))
