"""The experiments on loading and on throughput, on a tiny model: repeated, resumed, and what their summaries say."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from experiments import loading, throughput
from experiments.workload import WORDINGS, extended_workload
from replication.caches.embedding import load_embedder
from replication.data import load
from replication.errors import ReplicationError
from replication.records import RunFolder, without_seconds
from replication.runner import find_experiments, recorded, result_folder


@pytest.fixture(scope="module")
def configs(tiny_directory) -> dict:
    return {
        "loading": loading.Config(
            model=tiny_directory,
            n=2,
            length=128,
            chunk=24,
            prefix=16,
            fresh=16,
            ratios=(0.15, 0.5, 0.9),
            rates=(0.001, 0.1),
            prices=(1, 2),
            swept=0.001,
            traced=0.001,
            rounds=2,
            profile=(64, 128),
            profile_rounds=1,
            entries=100,
        ),
        "throughput": throughput.Config(
            model=tiny_directory,
            n=2,
            top=3,
            live_seconds=0.3,
            simulated=100,
            resamples=3,
            sizes=(1, 2),
            batch_length=96,
            chunk=24,
            prefix=16,
            fresh=16,
            rounds=2,
            output=2,
        ),
    }


NAMES = ("loading", "throughput")


@pytest.mark.parametrize("name", NAMES)
def test_draws_its_figure_and_resumes_to_the_same_records(configs, finished, tmp_path, name):
    config, folder = configs[name], finished(name)
    assert (folder / "figure.png").stat().st_size > 10_000
    assert not (folder / "chunks").exists()
    whole = RunFolder(folder, recorded(config)).records
    copy = result_folder(name, config, tmp_path)
    shutil.copytree(folder, copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])
    find_experiments()[name].run(config, RunFolder(copy, recorded(config)))
    again = RunFolder(copy, recorded(config)).records
    assert without_seconds(again) == without_seconds(whole)


def test_every_loaded_blend_is_exact_and_the_slow_device_is_slow(summary_of):
    summary = summary_of("loading")
    assert summary["exact"] is True
    slow, memory = (summary["controller"][device] for device in ("0.001 GB/s", "memory"))
    assert slow["throughput"] < 1.05e6 < memory["throughput"]
    assert slow["ratio"] == 1
    assert summary["paper"]["llama-7b"]["load_ms"] == pytest.approx(13.98, abs=0.01)


def test_ttft_is_predicted_from_loads_and_computes(configs, finished):
    """Four layers that take 0.1 s to load and 0.2 s to compute, after 0.01 s: 1.21 s, or 0.91 s where they overlap."""
    records = RunFolder(finished("loading"), recorded(configs["loading"])).records
    for record in records:
        if record["kind"] == "load":
            record["seconds"]["load"] = [0.1] * 4
        if record["kind"] == "timing":
            record["seconds"] |= {"before": 0.01, "compute": [0.2] * 4, "ttft": 1.0}
    summary = loading.summarise(records, configs["loading"])
    for modes in summary["devices"]["0.1 GB/s"]["cells"].values():
        predicted = {mode: found["predicted"] for mode, found in modes.items()}
        assert predicted == pytest.approx({"sequential": 1.21, "pipelined": 0.91, "prefetched": 0.91})
    assert summary["error"]["sequential"]["median"] == pytest.approx(0.21)
    assert summary["error"]["pipelined"]["median"] == pytest.approx(0.09)


def test_the_controllers_ratio_is_judged_only_where_it_was_measured(configs, finished):
    records = RunFolder(finished("loading"), recorded(configs["loading"])).records
    for record in records:
        if record["kind"] == "full":
            record["seconds"]["ttft"] = 1.0
        if record["kind"] == "load" and record["device"] == "0.001 GB/s":
            record["seconds"]["load"] = [0.1] * 4  # the controller picks 40 %
        if record["kind"] == "timing" and record["device"] == "0.001 GB/s":
            record["seconds"]["ttft"] = {"15": 2.0, "50": 3.0, "90": 5.0}.get(record["cell"].partition("@")[2], 1.0)
    swept = loading.summarise(records, configs["loading"])["swept"]
    assert swept["ratio"] == pytest.approx(0.4)
    assert swept["chosen_over_least"]["median"] == pytest.approx((2 + 25 / 35) / 2)
    assert swept["twice_over_least"]["median"] == pytest.approx(4.5 / 2)
    narrow = replace(configs["loading"], ratios=(0.15, 0.5))
    assert loading.summarise(records, narrow)["swept"]["twice_over_least"] is None


def test_live_and_simulated_queues_see_the_same_requests(summary_of):
    summary = summary_of("throughput")
    assert set(summary["live"]) == {"full", "cacheblend-paper"}
    for found in summary["live"].values():
        assert found["simulated"] > 0
        assert found["over_simulated"] == pytest.approx(found["ttft"] / found["simulated"], rel=1e-4)
    reused = {name: found["reused"]["mean"] for name, found in summary["services"].items()}
    assert reused["full"] == 0
    assert reused["cacheblend-paper"] == reused["full-reuse"] > reused["prefix"] > 0


def test_throughput_by_hand(configs, finished):
    """Twice as fast a server bears twice the requests for the same slowdown, and more for the same TTFT."""
    records = RunFolder(finished("throughput"), recorded(configs["throughput"])).records
    for record in records:
        if record["kind"] == "service":
            record["seconds"]["ttft"] = 0.5 if record["method"] == "cacheblend-paper" else 1.0
    summary = throughput.summarise(records, configs["throughput"])
    assert summary["gain"]["prefix"]["mean"] == pytest.approx(summary["gain"]["full"]["mean"])
    assert summary["gain"]["full"]["mean"] > 2
    assert list(summary["curves"]["full"]) == ["0.2", "0.5", "0.7", "0.8", "0.9"]
    assert list(summary["curves"]["cacheblend-paper"])[-1] == "1.5"


def test_workload_asks_every_question_in_every_wording_and_finds_its_passage():
    examples = load("synthetic", n=4).examples
    embedder = load_embedder()
    queries = extended_workload(examples, embedder, top=3, seed=0)
    assert len({q.id for q in queries}) == len(queries) == 4 * len(WORDINGS)
    assert {len(set(q.passages)) for q in queries} == {3}
    assert np.mean([q.recalled for q in queries]) > 0.9
    own = [q for q in queries if q.id.startswith(examples[0].id)]
    assert len({frozenset(q.passages) for q in own}) < len(own)
    assert len({q.passages for q in own}) > 1
    assert queries == extended_workload(examples, embedder, top=3, seed=0)


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        (loading, {"length": 64}),
        (loading, {"prices": (1,)}),
        (loading, {"swept": 3.0}),
        (loading, {"ratios": (0.5,)}),
        (loading, {"rates": (-1.0, 0.05, 0.1), "prices": (1, 2, 3)}),
        (throughput, {"skip": 1.0}),
        (throughput, {"live": ("naive",)}),
        (throughput, {"loads": (0.0,)}),
        (throughput, {"sizes": ()}),
        (throughput, {"batch_length": 64}),
        (throughput, {"limit": 1.0}),
    ],
)
def test_bad_settings_are_refused(experiment, settings):
    with pytest.raises(ReplicationError):
        experiment.Config(**settings)
