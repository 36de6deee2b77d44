"""The loading controller's formulas: the paper's worked example, and what must hold of any device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.loading import (
    Device,
    cheapest_device,
    choose_ratio,
    hidden_ratio,
    load_seconds,
    pipeline_seconds,
    recompute_seconds,
    storage_cost,
)

SECONDS = st.floats(0, 10)
POSITIVE = st.floats(1e-3, 10)
LAYERS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8)


def test_the_papers_worked_example_and_its_errata():
    """Sec. 5: a layer of 4K tokens from 4.8 GB/s. The text says 16 ms for Llama-7B, 4 ms for Llama-70B, and 7 ms to
    recompute 15 % of the latter, whose prefill takes 6 s in 80 layers; its formulas give 14.0, 3.5 and 11.25 ms."""
    seven, seventy = 2 * 32 * 128 * 2, 2 * 8 * 128 * 2  # K and V, heads, head dim, bytes: of a token in a layer
    assert (seven, seventy) == (16_384, 4_096)
    assert 1000 * load_seconds(seven, 4096, 4.8e9) == pytest.approx(13.98, abs=0.01)
    assert 1000 * load_seconds(seventy, 4096, 4.8e9) == pytest.approx(3.50, abs=0.01)
    assert 1000 * recompute_seconds(0.15, 6 / 80) == pytest.approx(11.25)
    # with the text's own recompute time: loading hides it, up to 80 % for its 16 ms and 70 % by the formula
    prefill = 3e-3 / 0.15
    assert choose_ratio(prefill, 16e-3) == pytest.approx(0.8)
    assert choose_ratio(prefill, load_seconds(seven, 4096, 4.8e9)) == pytest.approx(0.699, abs=1e-3)
    # Llama-70B computes longer than it loads, so the least ratio stands
    assert choose_ratio(6 / 80, 4e-3) == 0.15


@given(prefill=POSITIVE, load=SECONDS, least=st.floats(0, 1))
def test_the_ratio_hides_recompute_unless_quality_needs_more(prefill, load, least):
    ratio = choose_ratio(prefill, load, least)
    assert least <= ratio <= 1
    if ratio > least:
        assert recompute_seconds(ratio, prefill) == pytest.approx(min(load, prefill))
    assert recompute_seconds(hidden_ratio(prefill, load), prefill) <= load * (1 + 1e-9)


@given(
    prefill=POSITIVE,
    specs=st.lists(st.tuples(st.floats(1, 1e4), POSITIVE), min_size=1, max_size=6),
    tokens=st.integers(1, 5000),
)
def test_no_cheaper_device_would_do(prefill, specs, tokens):
    devices = [Device(str(i), *spec) for i, spec in enumerate(specs)]
    chosen = cheapest_device(devices, 2.0, tokens, prefill)
    fast = [d for d in devices if load_seconds(2.0, tokens, d.throughput) <= recompute_seconds(0.15, prefill)]
    assert (chosen is None) == (not fast)
    if chosen:
        assert chosen in fast
        assert all(storage_cost(2.0, tokens, 60, chosen) <= storage_cost(2.0, tokens, 60, d) for d in fast)


@given(LAYERS)
def test_the_pipeline_is_the_sum_or_the_papers_formula(layers):
    load, compute = (list(times) for times in zip(*layers, strict=True))
    assert pipeline_seconds(load, compute, ahead=0) == pytest.approx(sum(load) + sum(compute))
    overlapped = load[0] + sum(max(c, n) for c, n in zip(compute, [*load[1:], 0.0], strict=True))
    assert pipeline_seconds(load, compute) == pytest.approx(overlapped)


@given(LAYERS, st.integers(0, 8))
def test_loading_further_ahead_never_takes_longer_nor_beats_the_longer_half(layers, ahead):
    load, compute = (list(times) for times in zip(*layers, strict=True))
    here, further = (pipeline_seconds(load, compute, n) for n in (ahead, ahead + 1))
    assert further <= here * (1 + 1e-9)
    assert further >= max(sum(load) + compute[-1], load[0] + sum(compute)) * (1 - 1e-9)


def test_pipeline_by_hand():
    """Layer 0 computes for 5 s. One layer ahead, only layer 1 is loaded meanwhile; with two, layer 2 as well."""
    load, compute = [1, 2, 3], [5, 1, 1]
    assert [pipeline_seconds(load, compute, ahead) for ahead in (0, 1, 2)] == [13, 10, 8]
