"""The authors' mask: what recomputed rows see under it, and where it changes nothing."""

import pytest
import torch
from conftest import FAMILIES, SLIDING
from prefills import a_prompt

from experiments.reuse_common import reused
from replication.attention import watched
from replication.bottom_right import bottom_right_mask
from replication.errors import ReplicationError
from replication.fuse import fuse
from replication.selectors import Selector
from replication.selectors.hkvd import HKVD

PROMPT = a_prompt((3, 20, 9))


def masked(stored, selector):
    with bottom_right_mask(stored.model, len(PROMPT), selector.check_layer):
        return fuse(stored, selector)


@pytest.mark.parametrize("family", FAMILIES)
def test_row_i_of_n_sees_all_but_the_last_n_minus_i_minus_1_keys(tiny, family):
    stored, layers = reused(tiny(family), PROMPT), []
    with watched(stored.model, layers.append):
        report = masked(stored, HKVD(0.3)).report
    tokens, rows = len(PROMPT), report.selected + list(range(32, 36))
    for weights in layers[1:]:
        assert weights.shape[1:] == (len(rows), tokens)
        for i, row in enumerate(rows):
            seen = weights[0, i].nonzero()[:, 0].tolist()
            assert seen[-1] == tokens - len(rows) + i
            if family not in SLIDING:
                assert len(seen) == seen[-1] + 1
            assert set(range(row, seen[-1] + 1)) <= set(seen)
    assert not layers[0][0].triu(1 + 3).any()  # its rows begin behind the exact prefix


@pytest.mark.parametrize("selector", [Selector(ratio=0), HKVD(1.0)])
def test_rows_at_the_end_and_all_rows_are_causal_under_it(tiny, selector):
    stored = reused(tiny("llama"), PROMPT)
    assert torch.allclose(masked(stored, selector).logits, fuse(stored, selector).logits, atol=1e-5)


def test_it_changes_what_is_blended_and_leaves_the_model_as_it_was(tiny):
    model, stored = tiny("llama"), reused(tiny("llama"), PROMPT)
    before = fuse(stored, HKVD(0.3)).logits
    with bottom_right_mask(model, len(PROMPT), 1):
        first, second = (fuse(stored, HKVD(0.3)).logits for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.allclose(first, before, atol=1e-3)
    assert torch.equal(fuse(stored, HKVD(0.3)).logits, before)


def test_rows_in_parts_are_refused(tiny):
    model = tiny("llama")
    with bottom_right_mask(model, 20, 0), pytest.raises(ReplicationError, match="rows at once"):
        model.layers[0](torch.zeros(1, 4, 32), attention_mask=torch.zeros(1, 1, 4, 10), blocks=[(slice(4), 10)])
