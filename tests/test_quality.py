"""The quality experiment: every sweep from config to figure on a tiny model, and the arithmetic of its summary."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import power, quality
from experiments.cells import NO_CONTEXT
from experiments.quality_figure import in_order
from experiments.sweeps import SWEEPS, sweep_inputs
from replication.data import load
from replication.decode import FirstLine, generate
from replication.errors import ReplicationError
from replication.measure import Request
from replication.metrics.answers import first_line
from replication.model import load_model
from replication.prompt import build_prompt
from replication.records import RunFolder, read_records, without_seconds
from replication.runner import recorded, run_one
from replication.stats import difference_n

SMALL = {"n": 3, "passages": 3, "timed": 1, "rounds": 1, "ratios": (0.15, 0.5), "pool": 4}
VALUES = {"ratio": (0.15, 1.0), "chunks": (2, 3), "length": (32, 64), "order": (0, 1), "retrieval": (1, 3)}
ROOT = Path(__file__).resolve().parent.parent


def config(model: str, sweep: str, **changes) -> quality.Config:
    return quality.Config(**{"model": model, "sweep": sweep, "values": VALUES[sweep], **SMALL, **changes})


@pytest.fixture(scope="module")
def runs(tiny_directory, tmp_path_factory):
    """runs(sweep): the folder of a small run, made once."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(sweep: str) -> Path:
        if sweep not in made:
            made[sweep] = run_one("quality", config(tiny_directory, sweep), root)
        return made[sweep]

    return run


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_has_a_folder_of_its_own_with_every_cell_at_every_value(runs, tiny_directory, sweep):
    folder = runs(sweep)
    assert folder.name == f"synthetic-{sweep}"
    assert (folder / "figure.png").stat().st_size > 10_000
    found = summary(folder)
    places = found["places"].values() if SWEEPS[sweep].prompts else [found]
    ratios = SMALL["ratios"] if SWEEPS[sweep].prompts else VALUES["ratio"]
    expected = {"full", NO_CONTEXT, "naive", "full-reuse", "shared-prefix", "first-k@15", "random@15"}
    expected |= {f"cacheblend-paper@{100 * r:g}" for r in ratios}
    for place in places:
        assert set(place["cells"]) == expected
        assert place["cells"]["full"]["kl_first"]["mean"] < 1e-6
        assert all("speedup" in cell for name, cell in place["cells"].items() if name != NO_CONTEXT)


def test_a_run_is_repeated_and_resumed_bit_by_bit(runs, tiny_directory, tmp_path):
    whole = without_seconds(read_records(runs("chunks")))
    again = run_one("quality", config(tiny_directory, "chunks"), tmp_path)
    assert without_seconds(read_records(again)) == whole
    file = again / "records.jsonl"
    lines = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["kind"] != "timing"]
    file.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])
    run_one("quality", config(tiny_directory, "chunks"), tmp_path)
    resumed = without_seconds(read_records(again))
    assert sorted(map(json.dumps, resumed)) == sorted(map(json.dumps, whole))


def test_recomputing_everything_is_full_prefill(runs):
    cells = summary(runs("ratio"))["cells"]
    assert cells["cacheblend-paper@100"]["kl_first"]["mean"] < 1e-4
    assert cells["cacheblend-paper@15"]["kl_first"]["mean"] > 1e-3


def test_closed_answers_are_not_reported_and_no_loss_is_not_claimed(runs):
    found = summary(runs("ratio"))
    assert not any(found["gate"]["open"].values())
    assert not any("f1" in cell for cell in found["cells"].values())
    assert set(found["no_loss"].values()) == {None}
    assert found["needed"]["first"] is None
    assert found["needed"]["nll"]["n"] == SMALL["n"]


@pytest.fixture
def opened(runs, tiny_directory):
    """opened(f1, answerable): the ratio sweep's summary as if answers had been generated; f1(cell, number of the
    example), and whether an example has a gold answer in a passage."""
    settings = config(tiny_directory, "ratio")

    def summarise(f1, answerable=lambda k: True) -> dict:
        records = read_records(runs("ratio"))
        names = sorted({r["example"] for r in records if r["kind"] == "quality"})
        for record in records:
            if record["kind"] == "quality":
                k = names.index(record["example"])
                value = f1(record["cell"], k)
                record |= {"answerable": answerable(k), "f1": value, "f1_tokens": value, "em": value, "rank": 0.0}
        return quality.summarise(records, settings)

    return summarise


def test_equal_answers_are_no_loss_and_others_are_undecided(opened):
    scores = {NO_CONTEXT: (0, 0, 0), "full": (1, 0.9, 0.8), "cacheblend-paper@15": (1, 0.9, 0.8), "naive": (1, 0, 1)}
    found = opened(lambda cell, k: scores.get(cell, (0.5, 0.4, 0.3))[k])
    assert found["cells"]["full"]["f1"]["mean"] == pytest.approx(0.9)
    assert found["no_loss"]["cacheblend-paper@15"]["p"] == 0
    assert found["no_loss"]["naive"] is None
    assert found["equivalence"]["naive"]["mean"] == pytest.approx(-0.7 / 3)
    assert found["no_loss"]["full-reuse"]["p"] == 1  # surely a loss, of 0.5
    assert found["gain"]["cacheblend-paper@15"]["mean"] == pytest.approx(0.5)


def test_questions_without_a_gold_passage_are_told_apart(opened):
    scores = {NO_CONTEXT: (0, 0, 0), "full": (1, 0.9, 0.8), "cacheblend-paper@15": (0, 0.9, 0.5)}

    def found(answerable):
        return opened(lambda cell, k: scores.get(cell, (0.5, 0.4, 0.3))[k], answerable)["answerable"]

    some = found(lambda k: k > 0)
    assert some["share"]["mean"] == pytest.approx(2 / 3)
    assert some["cells"]["full"]["f1"]["mean"] == pytest.approx(0.85)
    assert some["gain"]["mean"] == pytest.approx((0.5 + 0.2) / 2)
    every = found(lambda k: True)
    assert every["share"]["mean"] == 1
    assert every["cells"] is every["gain"] is None


def test_the_ratio_needed_is_the_least_from_which_on_the_loss_is_within_the_limit(opened):
    levels = {NO_CONTEXT: 0.0, "full": 0.9, "full-reuse": 0.5, "cacheblend-paper@15": 0.89, "cacheblend-paper@100": 0.9}
    needed = opened(lambda cell, k: levels.get(cell, 0.3))["needed"]["first"]
    assert (needed["value"], needed["low"], needed["high"]) == (0.15, 0.15, 0.15)
    assert needed["ceiling"] > 1
    levels["cacheblend-paper@15"] = 0.8
    assert opened(lambda cell, k: levels.get(cell, 0.3))["needed"]["first"]["value"] == 1.0
    levels["full-reuse"] = 0.9  # that all larger ratios lose too much, makes it no ratio that suffices
    assert opened(lambda cell, k: levels.get(cell, 0.3))["needed"]["first"]["value"] == 1.0


def test_gaps_and_worst_values_are_across_the_values(runs):
    found = summary(runs("chunks"))
    places = found["places"]
    loss = {x: place["nll_loss"]["full-reuse"]["mean"] for x, place in places.items()}
    assert found["trend"]["gap"]["full-reuse"]["nll"]["mean"] == pytest.approx(loss["3"] - loss["2"], abs=1e-5)
    blend = [place["nll_loss"]["cacheblend-paper@15"]["high"] for place in places.values()]
    assert found["worst"]["nll_loss"]["high"] == pytest.approx(max(blend))
    assert found["needed_range"]["first"] is None


def test_the_spread_over_orders_is_a_standard_deviation(runs):
    folder = runs("order")
    nll = {}
    for record in read_records(folder):
        if record["kind"] == "quality" and record["cell"] == "naive":
            nll.setdefault(record["example"], []).append(record["nll"])
    expected = np.mean([np.std(values, ddof=1) for values in nll.values()])
    assert summary(folder)["spread"]["naive"]["nll"]["mean"] == pytest.approx(expected, rel=1e-5)


def test_a_figure_has_values_and_ratios_in_rising_order():
    cells = {"b@100": 1, "b@15": 2, "b@5": 3, "a": 4}
    assert list(in_order({"cells": cells})["cells"].items()) == [("a", 4), ("b@5", 3), ("b@15", 2), ("b@100", 1)]
    assert list(in_order({"places": {"16": {}, "2": {}, "4": {}}, "n": 3})["places"]) == ["2", "4", "16"]


def test_lengths_and_orders_leave_the_tokens(tiny_directory):
    model = load_model(tiny_directory)
    for sweep, values in (("length", (32, 64)), ("order", (0, 1, 2))):
        inputs, _ = sweep_inputs(config(tiny_directory, sweep, values=values), model)
        bags = [[sorted(prompt.ids) for prompt in found.prompts] for found in inputs.values()]
        assert all(bag == bags[0] for bag in bags)
        shapes = {tuple(s.ids for s in found.prompts[0].segments) for found in inputs.values()}
        assert len(shapes) == len(values)


def test_retrieval_takes_the_nearest_passages_of_the_pool_first(tiny_directory):
    model = load_model(tiny_directory)
    inputs, identity = sweep_inputs(config(tiny_directory, "retrieval", n=4, pool=6), model)
    assert identity["chunks"] == 18
    for few, many in zip(inputs[1.0].examples, inputs[3.0].examples, strict=True):
        assert many.passages[:1] == few.passages
        assert set(many.supports) == set(many.holders)  # what was needed is found again at its new place
    assert sum(e.answerable for e in inputs[3.0].examples) >= 3  # questions name the institution that they ask about


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweep": "chunk"}, "unknown sweep 'chunk'; did you mean chunks"),
        ({"values": (2,)}, "at least 2 different values"),
        ({"values": (2, 2)}, "at least 2 different values"),
        ({"values": (0, 2)}, "start at 1, not 0"),
        ({"values": (2, 2.5)}, "are whole numbers"),
        ({"sweep": "ratio", "values": (0.1, 0.5)}, "ratio 0.15 among the ratios"),
        ({"methods": ("naive",)}, "full-reuse must be among the methods"),
        ({"sweep": "retrieval", "pool": 2}, "pool must be at least n, which is 40"),
        ({"curve": ()}, "curve needs at least one method"),
        ({"pipelines": ("map-reduse",)}, "did you mean map-reduce"),
        ({"pipelines": ("map-reduce",), "sweep": "length"}, "passage by passage, which the sweep 'length' rearranges"),
        ({"methods": ("full-reuse", "rondom")}, "did you mean random"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ReplicationError, match=message):
        quality.Config(**{"sweep": "chunks", **changes})


def test_data_are_checked_at_every_value_before_the_run(tiny_directory):
    with pytest.raises(ReplicationError, match="no unused invented value"):
        quality.check(config(tiny_directory, "chunks", values=(2, 601)))


def test_pipelines_are_compared_by_answers_and_time(tiny_directory, tmp_path):
    settings = config(tiny_directory, "ratio", pipelines=("map-reduce",), methods=("full-reuse",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "is_open", lambda *_: True)  # a random model's answers are all wrong
        folder = run_one("quality", settings, tmp_path)
    records = read_records(folder)
    seconds = [r["seconds"] for r in records if r["kind"] == "quality" and r["cell"] == "map-reduce"]
    assert len(seconds) == SMALL["n"]
    assert all(s["parallel"] < s["ttft"] for s in seconds)
    for record in records:
        if record["kind"] == "quality":
            level = {"no-context": 0.0, "map-reduce": 0.5}.get(record["cell"], 0.75)
            record |= {name: level for name in ("f1", "f1_tokens", "em", "rank")}
    found = quality.summarise(records, settings)
    versus, cells = found["versus"], found["cells"]
    assert versus["map-reduce"]["first"]["mean"] == 0.25
    speeds = [cells[name]["speedup"]["median"] for name in ("cacheblend-paper@15", "map-reduce")]
    assert versus["map-reduce"]["speedup"] == pytest.approx(speeds[0] / speeds[1])
    assert versus["map-rerank"] == {"first": None, "speedup": None, "speedup_parallel": None}


def test_the_pilot_says_what_n_a_margin_needs(tiny_directory, tmp_path):
    settings = power.Config(model=tiny_directory, n=3, passages=2, most=50)
    folder = run_one("power", settings, tmp_path)
    assert (folder / "figure.png").stat().st_size > 10_000
    records = RunFolder(folder, recorded(settings)).records
    blended = [r for r in records if r.get("cell") == "cacheblend-paper@15"]
    for record, f1 in zip(blended, (0.0, 0.5, 1.0), strict=True):
        record |= {"f1": f1, "nll": 2.0}
    gains = dict(zip((r["example"] for r in blended), (0.4, 0.5, 0.6), strict=True))
    for record in records:
        if record.get("cell") == "full-reuse":
            record["nll"] = 2.0 + gains[record["example"]]
    whole = power.summarise(records, settings)
    assert whole["for_gain"] == difference_n(0.5, 0.1)
    found = whole["methods"]["cacheblend-paper@15"]
    assert found["deviation"] == pytest.approx(0.5)
    assert found["margins"]["0.02"]["needed"] == pytest.approx(((1.6449 + 1.2816) * 25) ** 2, rel=0.01)
    assert found["margins"]["0.02"]["n"] == 50
    assert found["margins"]["0.02"]["power"] == 0


def test_stopping_at_the_line_end_leaves_the_answer(smollm2):
    for example in load("synthetic", 3, passages=2).examples:
        prompt = build_prompt(example.passages, example.question, smollm2.tokenizer)
        texts = []
        for stop in ([], [FirstLine(smollm2.tokenizer, len(prompt))]):
            prefill = Request(smollm2, prompt).prefill("full")
            texts.append(generate(smollm2, prompt.ids, prefill, stopping_criteria=stop))
        long, short = texts
        assert long.startswith(short)
        assert len(short) < len(long)
        assert first_line(short) == first_line(long) != ""


def test_two_runs_are_compared_record_by_record(runs, tmp_path):
    root = runs("chunks").parents[2]
    other = tmp_path / "other" / runs("chunks").relative_to(root)
    other.mkdir(parents=True)
    text = (runs("chunks") / "records.jsonl").read_text()
    first = tmp_path / "first" / other.relative_to(tmp_path / "other")
    first.mkdir(parents=True)
    (first / "records.jsonl").write_text(text)
    for changed, code, message in (
        (text.replace('"ttft": ', '"ttft": 1'), 0, "identical, wall-clock fields apart"),
        (text.replace('"kl_first": ', '"kl_first": 1', 1), 1, "the first difference in record"),
    ):
        (other / "records.jsonl").write_text(changed)
        command = [sys.executable, str(ROOT / "scripts" / "compare_runs.py"), tmp_path / "first", tmp_path / "other"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=None)
        assert (done.returncode, message in done.stdout) == (code, True), done.stdout + done.stderr
