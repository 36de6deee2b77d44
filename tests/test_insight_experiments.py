"""The experiments on the paper's insights and ablations: run, resumed, repeated, and their arithmetic by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import (
    ablation_variants,
    ablations,
    attention_deviation,
    equal_budget,
    kv_deviation,
    picked_tokens,
    schedule,
)
from experiments.common import by_cell
from replication.data import load
from replication.errors import ReplicationError
from replication.methods import METHODS
from replication.model import load_model
from replication.prompt import PromptFormat, build_prompt, chain
from replication.records import RunFolder, read_records
from replication.runner import find_experiments, recorded, run_one

SMALL = {"n": 2, "passages": 2}
NAMES = ("attention_deviation", "kv_deviation", "picked_tokens", "schedule", "ablations", "equal_budget")


def config(name: str, model: str):
    few = {
        "attention_deviation": attention_deviation.Config(model=model, ratios=(0.1, 0.5, 1.0), **SMALL),
        "kv_deviation": kv_deviation.Config(model=model, **SMALL),
        "picked_tokens": picked_tokens.Config(model=model, **SMALL),
        "schedule": schedule.Config(model=model, ratios=(0.15, 0.3), step=1, **SMALL),
        "ablations": ablations.Config(model=model, **SMALL),
        "equal_budget": equal_budget.Config(model=model, **SMALL),
    }
    return few[name]


@pytest.fixture(scope="module")
def ran(tiny_directory, tmp_path_factory):
    """ran(name): results folder and summary of an experiment on the tiny model."""
    done = {}

    def run(name):
        if name not in done:
            done[name] = run_one(name, config(name, tiny_directory), tmp_path_factory.mktemp(name))
        return done[name], json.loads((done[name] / "summary.json").read_text())

    return run


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_run_ends_with_the_same_records(ran, tiny_directory, tmp_path, name):
    finished, _ = ran(name)
    whole = (finished / "records.jsonl").read_text().splitlines(keepends=True)
    settings = config(name, tiny_directory)
    RunFolder(tmp_path, recorded(settings))
    (tmp_path / "records.jsonl").write_text("".join(whole[: len(whole) // 2]) + whole[-1][:20])
    find_experiments()[name].run(settings, RunFolder(tmp_path, recorded(settings)))
    assert (tmp_path / "records.jsonl").read_text() == "".join(whole)
    assert (finished / "figure.png").stat().st_size > 10_000


def test_recomputing_all_is_full_prefill(ran):
    _, summary = ran("attention_deviation")
    assert summary["exact"] <= 1e-4
    assert summary["cells"]["random@100"]["kl_first"]["mean"] <= 1e-6
    assert summary["cells"]["full-reuse"]["delta_attn"]["mean"] > 0
    assert summary["left"]["cacheblend-paper@100"]["mean"] <= 1e-4


def test_the_fall_by_hand():
    few = attention_deviation.Config(methods=("cacheblend-paper",), ratios=(0.1, 0.2, 1.0))
    curve = {
        "full-reuse": [2.0],
        "cacheblend-paper@10": [1.0],
        "cacheblend-paper@20": [0.8],
        "cacheblend-paper@100": [0],
    }
    found = attention_deviation._fall(curve, "cacheblend-paper", few)
    steps = {step: estimate["mean"] for step, estimate in found["steps"].items()}
    assert steps == pytest.approx({"0 to 10": 0.05, "10 to 20": 0.01, "20 to 100": 0.005})
    assert found["first_minus_steepest_later"]["mean"] == pytest.approx(0.04)


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=5))
def test_a_ratio_suffices_only_if_all_larger_ones_do(highs):
    ratios = [round(0.1 * (i + 1), 1) for i in range(len(highs))] + [1.0]
    loss = {r: {"kl": {"mean": h, "high": h}} for r, h in zip(ratios, [*highs, 0.0], strict=True)}
    smallest = attention_deviation._from_where(loss, "kl")
    assert all(loss[r]["kl"]["high"] <= 0.1 for r in ratios if r >= smallest)
    below = [r for r in ratios if r < smallest]
    assert not below or loss[below[-1]]["kl"]["high"] > 0.1


def test_nll_is_judged_only_where_passages_help(ran):
    records = read_records(ran("attention_deviation")[0])
    few = attention_deviation.Config(ratios=(0.1, 0.5, 1.0), **SMALL)
    for record in records:
        if record["kind"] == "cell":
            record["nll"] = 3.0 if record["cell"] == "no-context" else 1.0
    assert attention_deviation.summarise(records, few)["suffices"]["nll"] == 0.1
    for record in records:
        if record["kind"] == "cell":
            record["nll"] = 1.0
    assert attention_deviation.summarise(records, few)["suffices"]["nll"] is None


def test_even_deviation_is_not_concentrated():
    deviation = np.ones((3, 100)) + 1e-6 * np.arange(100)
    rows = [{"K": kv_deviation._spread(deviation)}] * 2
    found = kv_deviation._concentration(rows, "K")
    assert found["top_over_rest"]["mean"] == pytest.approx(1, abs=1e-3)
    assert found["top_share"]["15"]["mean"] == pytest.approx(0.15, abs=1e-3)
    ranks = kv_deviation._ranks(rows, "K")
    assert ranks["neighbours"]["mean"] == ranks["check_layer"]["mean"] == pytest.approx(1)
    assert np.array(ranks["matrix"]) == pytest.approx(np.ones((3, 3)))


def test_moved_keys_of_layer_0_are_full_prefills(ran):
    assert 0 < ran("kv_deviation")[1]["moved"] < 1e-4  # rounding, but not the very same tensor


def test_the_weakest_neighbours_are_named_by_their_layers():
    deviation = np.array([np.arange(50), np.arange(50), -np.arange(50), -np.arange(50)]) + 100.0
    found = kv_deviation._ranks([{"V": kv_deviation._spread(deviation)}] * 2, "V")
    assert found["weakest"]["layers"] == [2, 3]
    assert found["weakest"]["mean"] == pytest.approx(-1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (".\n", "punctuation"),
        ("\n\n", "punctuation"),
        (" 1871", "number"),
        ("The", "function word"),
        (" of", "function word"),
        (" Ada", "capitalised"),
        ("mora", "other"),
    ],
)
def test_classes_of_tokens(text, kind):
    assert picked_tokens.token_class(text) == kind


def test_features_of_every_passage_token(tiny_directory):
    prompt = chain([("prefix", (5, 6)), ("passage", tuple(range(10, 20))), ("passage", (30, 31)), ("question", (7,))])
    found = picked_tokens.features(load_model(tiny_directory), prompt)
    assert [found["place"][i] for i in range(2, 12)] == ["0", "1", "2-3", "2-3", *["4-7"] * 4, "8-15", "8-15"]
    assert [found["place"][i] for i in (12, 13)] == ["0", "1"]
    assert [found["chunk"][i] for i in (2, 11, 12)] == ["1", "1", "2"]
    assert set(found["class"]) == set(range(2, 14))


def test_lifts_by_hand():
    counts = {"0": [2, 2], "1": [1, 2], "8-15": [0, 11]}
    assert picked_tokens._lift(counts, ("0",)) == pytest.approx(5)
    assert picked_tokens._lift(counts, picked_tokens.HEADS) == pytest.approx(0.75 * 5)


def test_picks_are_counted_once_for_each_feature(ran):
    folder, _ = ran("picked_tokens")
    for rows in by_cell(read_records(folder), "picked").values():
        for row in rows.values():
            sums = {tuple(np.sum(list(row[f].values()), axis=0)) for f in picked_tokens.FEATURES}
            assert len(sums) == 1
            picked, tokens = sums.pop()
            assert picked == round(0.15 * tokens)


def test_both_schedules_spend_the_same(ran):
    _, summary = ran("schedule")
    assert summary["gradual_over_fixed"]["15"]["operations_ratio"]["mean"] == pytest.approx(1, abs=0.05)
    assert summary["check_layers"] == [0, 1, 2, 3]
    operations = [summary["cells"][f"fixed from {c}@15"]["operations"]["mean"] for c in range(4)]
    assert operations == sorted(operations)
    assert operations[-1] < 1


def test_the_baseline_is_the_schedules_fixed_set(ran):
    (_, left), (_, right) = ran("ablations"), ran("schedule")
    assert left["cells"]["baseline"] == {
        k: v for k, v in right["cells"]["fixed from 1@15"].items() if k != "operations"
    }


def test_every_method_that_is_not_exact_is_compared(ran):
    _, summary = ran("equal_budget")
    compared = {name.partition("@")[0] for name in summary["against"]}
    assert compared == set(METHODS) - {"full", "prefix", "prefix-same-order", "cacheblend-paper"}
    assert all(name.endswith("@15") == METHODS[name.partition("@")[0]].takes_ratio for name in summary["against"])


@pytest.mark.parametrize("bos", [True, False])
def test_prompts_of_variants(tiny_directory, bos):
    model, style = load_model(tiny_directory), PromptFormat(bos=bos)
    example = load("synthetic", 1, passages=2).examples[0]
    plain = build_prompt(example.passages, example.question, model.tokenizer, style)
    found = {
        name: ablation_variants.prompts(variant, example, style, model)
        for name, variant in ablation_variants.variants(0.15, None, model, plain).items()
    }
    assert found["baseline"] == found["mask: bottom right"] == (plain, plain)
    suffix, whole = found["suffix: last token only"]
    assert (suffix.ids, whole) == (plain.ids, plain)
    assert [s.kind for s in suffix.segments] == ["prefix", "passage", "passage", "passage", "question"]
    assert len(suffix.segments[-1].ids) == 1
    kept, behind = found["BOS: kept"]
    other, its_own = found["BOS: none" if bos else "BOS: dropped"]
    assert other == its_own
    assert len(other) == len(plain) + (-1 if bos else 1)
    assert behind == (plain if bos else other)
    assert len(kept) == len(behind) + 2
    for before, after in zip(behind.segments, kept.segments, strict=True):
        assert after.ids == (behind.bos * (before.kind == "passage") + before.ids)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (attention_deviation.Config, {"ratios": (0.1, 0.5)}, "rise from above 0 to 1.0"),
        (attention_deviation.Config, {"ratios": (0.5, 0.1, 1.0)}, "rise from above 0 to 1.0"),
        (attention_deviation.Config, {"ratios": (-0.1, 1.0)}, "rise from above 0 to 1.0"),
        (attention_deviation.Config, {"ratios": (1.0,)}, "rise from above 0 to 1.0"),
        (attention_deviation.Config, {"methods": ("random",)}, "begin with cacheblend-paper"),
        (attention_deviation.Config, {"last": 0}, "last must be at least 1"),
        (schedule.Config, {"ratio": 0.3}, "must be one of ratios"),
        (picked_tokens.Config, {"ratio": 1.5}, "outside 0..1"),
        (picked_tokens.Config, {"ratio": 0.0}, "above 0"),
        (ablations.Config, {"ratio": -0.1}, "outside 0..1"),
        (equal_budget.Config, {"ratio": 1.1}, "outside 0..1"),
    ],
)
def test_bad_settings_are_refused(make, settings, message):
    with pytest.raises(ReplicationError, match=message):
        make(**settings)


def test_a_question_shorter_than_last_is_refused(tiny_directory, tmp_path):
    with pytest.raises(ReplicationError, match="lower it"):
        run_one("ablations", ablations.Config(model=tiny_directory, last=500, **SMALL), tmp_path)
