"""Attention, watched and done in blocks of rows."""

import pytest
import torch
from conftest import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.reuse_common import reused, watched_fuse
from replication.attention import AttentionFlow, ForwardAttention, watched
from replication.fuse import fuse
from replication.masked import Faults, masked_prefill
from replication.prompt import chain
from replication.row_attention import row_blocks
from replication.selectors.hkvd import HKVD
from replication.stored import StoredKV

PROMPT = chain([("prefix", (3, 4, 5)), ("passage", (6, 7, 8, 9)), ("passage", (10, 11, 2)), ("question", (12, 13))])


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gemma3"])
def test_watching_changes_nothing_and_shares_sum_to_one(tiny, family):
    model, flow = tiny(family), AttentionFlow(PROMPT)
    before = masked_prefill(model, PROMPT, Faults()).logits
    with watched(model, flow):
        during = masked_prefill(model, PROMPT, Faults()).logits
    assert torch.allclose(before, during, atol=1e-4)
    between = torch.tensor(flow.result()["between"])
    assert flow.layers == len(model.layers)
    assert torch.allclose(between.sum(1), torch.ones(len(between)), atol=1e-5)
    assert not between.triu(1).any()


def test_naive_attention_between_passages_is_exactly_zero(tiny):
    flow = AttentionFlow(PROMPT)
    with watched(tiny("llama"), flow):
        masked_prefill(tiny("llama"), PROMPT, Faults("stored", "own", "absent"))
    between = torch.tensor(flow.result()["between"])
    assert not (between[:3, :3] - between[:3, :3].diag().diag()).any()
    assert between[3, :3].all()


def test_attention_to_heads_by_hand():
    flow = AttentionFlow(chain([("passage", (1, 2, 3)), ("question", (4,))]))
    flow(torch.tensor([[[1, 0, 0, 0], [0.6, 0.4, 0, 0], [0.2, 0.3, 0.5, 0], [0.1, 0.2, 0.3, 0.4]]]))
    result = flow.result()
    assert result["to_heads"][0] == pytest.approx(0.4)
    assert result["from_question"] == pytest.approx([0.1, 0.4])
    assert result["between"][1] == pytest.approx([0.6, 0.4])


def test_forward_attention_joins_the_parts_of_a_layer():
    whole = torch.rand(2, 7, 7).tril()
    at_once, in_parts = ForwardAttention(7, 4, 3), ForwardAttention(7, 4, 3)
    at_once(whole)
    for part in (whole[:, :3, :3], whole[:, 3:6, :6], whole[:, 6:]):
        in_parts(part)
    for found in (at_once, in_parts):
        assert len(found.layers) == 1
        assert torch.equal(found.layers[0], whole[:, -3:, :4])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_watching_a_fused_prefill_changes_nothing(tiny, family, ratio):
    model = tiny(family)
    stored = reused(model, PROMPT)
    prefill, attention = watched_fuse(stored, HKVD(ratio), PROMPT, last=2)
    assert torch.allclose(prefill.logits, fuse(stored, HKVD(ratio)).logits, atol=1e-4)
    _, true = watched_fuse(StoredKV(model, PROMPT.ids, []), HKVD(0.0), PROMPT, last=2)
    assert len(attention) == len(true) == len(model.layers)
    assert attention[0].shape == true[0].shape == (4, 2, 10)
    same = [torch.allclose(a, b, atol=1e-4) for a, b in zip(attention, true, strict=True)]
    assert all(same) == (ratio == 1)
    assert same[0]


@given(st.sets(st.integers(0, 2000), min_size=1, max_size=400))
@settings(deadline=None)
def test_row_blocks_cover_all_rows_and_all_keys_that_these_may_see(rows):
    rows = torch.tensor(sorted(rows))
    blocks = row_blocks(rows)
    covered = torch.cat([rows[part] for part, _ in blocks])
    assert torch.equal(covered, rows)
    for part, keys in blocks:
        assert keys == rows[part][-1] + 1
