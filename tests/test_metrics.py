"""Fidelity and cost by hand."""

import math

import pytest
import torch

from replication.fuse import Report
from replication.methods import make_method
from replication.metrics.cost import ceiling, full_report, operations
from replication.metrics.fidelity import fidelity, kl
from replication.prompt import chain
from replication.store import MemoryStore


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def test_kl_by_hand():
    divergence = kl(logs([0.5, 0.5]), logs([0.25, 0.75]))
    assert divergence.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))


def test_fidelity_by_hand():
    reference, other = logs([0.9, 0.1], [0.8, 0.2]), logs([0.9, 0.1], [0.4, 0.6])
    found = fidelity(reference, other, (0, 1))
    assert found["kl_first"] == 0
    assert found["kl_answer"] == pytest.approx((0.8 * math.log(2) + 0.2 * math.log(1 / 3)) / 2)
    assert (found["top1"], found["agreement"]) == (1.0, 0.5)
    assert found["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.6)) / 2)


def test_operations_of_a_tiny_llama_by_hand(tiny):
    model = tiny("llama")  # 4 layers, hidden 32, 4 heads of 8 with 2 KV heads, MLP 48, 97 tokens
    weights = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48
    per_layer = 2 * weights * 10 + 4 * 32 * 55
    assert operations(model, full_report(model, 10)) == 2 * 32 * 97 + 4 * per_layer
    tapped = Report(rows=[10, 4, 4, 4], attended=[55, 30, 30, 30], tapped=[0, 10, 0, 0])
    rest = 3 * (2 * weights * 4 + 4 * 32 * 30) + 2 * (2 * 32 * 16) * 6
    assert operations(model, tapped) == 2 * 32 * 97 + per_layer + rest


def test_the_ceiling_is_one_for_full_prefill_and_falls_with_the_ratio(tiny):
    model = tiny("llama")
    prompt = chain([("prefix", (3, 4)), ("passage", tuple(range(5, 25))), ("question", (5, 6))])
    store = MemoryStore()
    make_method("cacheblend-author").learn(model, prompt, store)
    assert ceiling(model, 24, make_method("full").prefill(model, prompt, store).report) == 1
    found = [
        ceiling(model, 24, make_method("cacheblend-author", r).prefill(model, prompt, store).report)
        for r in (0, 0.1, 0.5, 1)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] >= 1
