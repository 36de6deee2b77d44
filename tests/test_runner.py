"""Finding, configuring, running and resuming experiments, with small invented ones."""

import json
import logging
import sys

import pytest

import experiments
from replication import runner
from replication.atomic import sole_writer
from replication.errors import ReplicationError

FAKE = """
from dataclasses import dataclass

TITLE = "an invented experiment"


@dataclass(frozen=True)
class Config:
    model: str = "model"
    dataset: str = "synthetic"
    n: int = 4
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    data_dir: str | None = None
    passages: int | None = None
    ratios: tuple[float, ...] = (0.1,)
    names: tuple[str, ...] = ()
    exact: bool = False
    stop_at: int | None = None


def run(config, folder):
    done = folder.done(("example",))
    for example in range(config.n):
        if (example,) in done:
            continue
        if (folder.path.parent / "press ctrl-c").exists() and example == 2:
            raise KeyboardInterrupt
        folder.append({"example": example, "kl": example / 10})


def summarise(records, config):
    return {"kl": {"mean": sum(r["kl"] for r in records) / len(records), "n": len(records)}}


def plot(folder):
    (folder / "figure.png").write_bytes(b"")
"""
PROFILE = """
about: invented
runs:
  - {experiment: fake, model: MODEL, dataset: synthetic, set: {n: 3}}
  - {experiment: fake, model: MODEL, dataset: synthetic-2hop}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with one experiment `fake`, an empty `model` directory and a profile `both`."""
    package = tmp_path / "package"
    (package / "profiles").mkdir(parents=True)
    (package / "fake.py").write_text(FAKE)
    (package / "helper.py").write_text("")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (package / "profiles" / "both.yaml").write_text(PROFILE.replace("MODEL", str(model)))
    monkeypatch.setattr(experiments, "__path__", [str(package)])
    for name in ("fake", "helper"):
        monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)
    yield tmp_path
    for name in ("fake", "helper"):
        sys.modules.pop(f"experiments.{name}", None)


def write_profile(place, text: str) -> None:
    (place / "package" / "profiles" / "both.yaml").write_text(text)


def records(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_only_modules_with_a_config_are_experiments(place):
    assert list(runner.find_experiments()) == ["fake"]


def test_texts_become_field_types(place):
    settings = {"n": "7", "ratios": "0.1, 1", "names": "a,b", "exact": "true", "stop_at": "none", "data_dir": "d"}
    config = runner.configure("fake", "m", "synthetic", settings)
    assert (config.n, config.ratios, config.names, config.exact) == (7, (0.1, 1.0), ("a", "b"), True)
    assert (config.stop_at, config.data_dir, config.model) == (None, "d", "m")


def test_values_of_yaml_become_field_types(place):
    config = runner.configure("fake", settings={"ratios": [1, 0.5], "exact": False, "stop_at": 3, "names": ["x"]})
    assert (config.ratios, config.exact, config.stop_at, config.names) == ((1.0, 0.5), False, 3, ("x",))
    assert config.model == "model"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n", "many", "bad value 'many' for n: expected a whole number"),
        ("n", 1.5, "expected a whole number"),
        ("n", True, "expected a whole number"),
        ("ratios", "0.1,x", "expected numbers separated by commas"),
        ("ratios", 0.1, "separated by commas"),
        ("exact", "perhaps", "expected true or false"),
        ("exact", 1, "expected true or false"),
        ("stop_at", "x", "expected a whole number or none"),
        ("dataset", None, "expected text"),
        ("raito", "1", "unknown fake setting 'raito'; did you mean ratios"),
    ],
)
def test_a_bad_setting_says_what_is_expected(place, key, value, message):
    with pytest.raises(ReplicationError, match=message):
        runner.configure("fake", settings={key: value})


def test_an_unknown_experiment_names_the_nearest(place):
    with pytest.raises(ReplicationError, match="unknown experiment 'fak'; did you mean fake"):
        runner.configure("fak")


def test_results_hold_no_path(place):
    config = runner.configure("fake", str(place / "model"), settings={"data_dir": str(place)})
    folder = runner.run_one("fake", config, place / "out")
    assert folder == place / "out" / "model" / "fake" / "synthetic"
    written = json.loads((folder / "provenance.json").read_text())["config"]
    assert written["model"] == "model"
    assert "data_dir" not in written
    assert json.loads((folder / "summary.json").read_text()) == {"kl": {"mean": 0.15, "n": 4}}


def test_a_profile_is_resumed_after_ctrl_c_and_then_left_alone(place):
    out, lines = place / "out", []
    flag = out / "model" / "fake" / "press ctrl-c"
    flag.parent.mkdir(parents=True)
    flag.touch()
    with pytest.raises(KeyboardInterrupt):
        runner.run_profile("both", out, say=lines.append)
    first, second = (flag.parent / name for name in ("synthetic", "synthetic-2hop"))
    assert [r["example"] for r in records(first)] == [0, 1]
    assert not (first / "summary.json").exists()

    flag.unlink()
    assert runner.run_profile("both", out, say=lines.append) == [first, second]
    assert [r["example"] for r in records(first)] == [0, 1, 2]
    assert [r["example"] for r in records(second)] == [0, 1, 2, 3]
    before = (first / "summary.json").stat().st_mtime_ns

    runner.run_profile("both", out, say=lines.append)
    assert (first / "summary.json").stat().st_mtime_ns == before
    assert lines == [
        "[1/2] fake · model · synthetic",
        "[1/2] fake · model · synthetic",
        "[2/2] fake · model · synthetic-2hop",
        "[1/2] fake · model · synthetic · already done",
        "[2/2] fake · model · synthetic-2hop · already done",
    ]


def test_a_run_without_its_figure_is_not_finished(place):
    config = runner.configure("fake", str(place / "model"))
    folder = runner.run_one("fake", config, place / "out")
    assert runner.is_finished(folder, config)
    assert not runner.is_finished(folder, runner.configure("fake", str(place / "model"), settings={"seed": 1}))
    (folder / "figure.png").unlink()
    assert not runner.is_finished(folder, config)


def test_a_second_run_into_the_same_folder_is_refused(place):
    config = runner.configure("fake", str(place / "model"))
    with (
        sole_writer(runner.result_folder("fake", config, place / "out")),
        pytest.raises(ReplicationError, match=r"another run is writing to .*fake/synthetic"),
    ):
        runner.run_one("fake", config, place / "out")
    runner.run_one("fake", config, place / "out")


def test_another_config_is_refused_before_anything_runs(place):
    out = place / "out"
    runner.run_profile("both", out)
    (out / "model" / "fake" / "synthetic" / "summary.json").unlink()
    with pytest.raises(ReplicationError, match="was made with seed = 0, not 1"):
        runner.run_profile("both", out, {"seed": "1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("about: x\nruns: [{experiment: fake, model: m}]", "run 1 of both.yaml lacks dataset"),
        ("about: x\nruns: [{experiment: fake, modle: m, dataset: d}]", "'modle'; did you mean model"),
        ("about: x\nrun: []", "unknown key in both.yaml 'run'; did you mean runs"),
        ("[]", "both.yaml is no mapping"),
        ("a: [", "both.yaml is not valid YAML"),
        ("about: x\nruns: [{experiment: fake, model: m, dataset: d, set: {q: 1}}]", "unknown fake setting 'q'"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(place, text, message):
    write_profile(place, text)
    with pytest.raises(ReplicationError, match=message):
        runner.load_profile("both")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("synthetic-2hop", "sinthetic", "unknown data set 'sinthetic'; did you mean synthetic"),
        ("synthetic-2hop", "synthetic", "lists the same experiment, model and data set twice"),
        ("n: 3", "dtype: float23", "unknown dtype 'float23'; did you mean float32"),
        ("n: 3", "device: abacus", "device 'abacus' cannot be used here"),
    ],
)
def test_a_mistake_in_any_run_stops_a_profile_before_the_first(place, before, after, message):
    text = PROFILE.replace("MODEL", str(place / "model"))
    write_profile(place, text.replace(before, after))
    with pytest.raises(ReplicationError, match=message):
        runner.run_profile("both", place / "out")
    assert not (place / "out").exists()


def test_models_that_cannot_be_loaded(tmp_path):
    with pytest.raises(ReplicationError, match="unknown model 'smolm2-135m'; did you mean smollm2-135m"):
        runner.model_source("smolm2-135m")
    with pytest.raises(ReplicationError, match="no transformers model"):
        runner.model_source(str(tmp_path))


def test_a_model_out_of_reach_is_one_error_without_lines_about_retries(monkeypatch, caplog):
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub = logging.getLogger("huggingface_hub")
    hub.addHandler(caplog.handler)
    before = hub.level
    with pytest.raises(ReplicationError, match="cannot reach model 'nobody/no-such-model': give one of"):
        runner.model_source("nobody/no-such-model")
    assert not caplog.records
    assert hub.level == before
    hub.removeHandler(caplog.handler)


def test_paths_are_shown_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runner.shown(tmp_path / "a" / "b") == "a/b"
    assert runner.shown("a/b") == "a/b"
    assert runner.shown(tmp_path.parent) == str(tmp_path.parent)
