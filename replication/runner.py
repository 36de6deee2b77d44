"""Experiments by name: found, configured, run into a results folder, and taken up again where they stopped."""

import dataclasses
import difflib
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch
import yaml

import experiments
from replication.atomic import explained, sole_writer
from replication.data import load
from replication.embedded import EMBEDDED, embedded_directory
from replication.errors import ReplicationError
from replication.model import DTYPES
from replication.records import RunFolder, jsonable
from replication.registry import Registry

Config = Any  # an experiment's own frozen dataclass
MODEL_FIELDS = ("model", "judge")
# where things are found, which says nothing about a number and differs between machines
_PLACES = ("data_dir", "url", "uncached_url", "blend_url")
_PROFILE_KEYS = {"about", "runs"}
_RUN_KEYS = {"experiment", "model", "dataset", "set"}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def find_experiments() -> Registry:
    """Name -> module of every experiment: a module of the package `experiments` that has a Config."""
    found = Registry("experiment")
    for info in pkgutil.iter_modules(experiments.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"experiments.{info.name}")
            if hasattr(module, "Config"):
                found[info.name] = module
    return found


def find_profiles() -> Registry:
    """Name -> file of every profile."""
    found = Registry("profile")
    for folder in experiments.__path__:
        found.update({path.stem: path for path in sorted(Path(folder, "profiles").glob("*.yaml"))})
    return found


def configure(
    name: str, model: str | None = None, dataset: str | None = None, settings: Mapping[str, Any] | None = None
) -> Config:
    """The config of experiment `name`; settings: field -> value, or its text as `--set` takes it.

    model, dataset: None keeps the experiment's default. Errors: ReplicationError for an unknown name or a bad value.
    """
    config_class = find_experiments()[name].Config
    hints = Registry(f"{name} setting")
    hints.update(get_type_hints(config_class))
    given = {"model": model, "dataset": dataset}
    chosen = {key: value for key, value in given.items() if value is not None} | dict(settings or {})
    return config_class(**{key: _converted(key, value, hints[key]) for key, value in chosen.items()})


def recorded(config: Config) -> dict:
    """The config as results hold it: without paths and addresses."""
    fields = {key: value for key, value in dataclasses.asdict(config).items() if key not in _PLACES}
    labels = {key: model_label(fields[key]) for key in MODEL_FIELDS if key in fields and Path(fields[key]).is_dir()}
    return jsonable(fields | labels)


def model_label(model: str) -> str:
    """The name that a model's results folder has: the last part of a hub id or directory."""
    return Path(model).resolve().name if Path(model).is_dir() else Path(model).name


def result_folder(name: str, config: Config, out: str | Path) -> Path:
    """<out>/<model>/<experiment>/<data set>; a config may have a `place` of its own instead of the data set."""
    return Path(out) / model_label(config.model) / name / getattr(config, "place", config.dataset)


def shown(path: str | Path) -> str:
    """A path as messages show it: from the current folder where that is shorter to read."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def run_one(name: str, config: Config, out: str | Path) -> Path:
    """Runs an experiment, or the rest of it, writes its summary and figures, and returns its results folder."""
    experiment = find_experiments()[name]
    path = result_folder(name, config, out)
    with sole_writer(path):
        folder = RunFolder(path, recorded(config))
        experiment.run(config, folder)
        folder.note_finished()
        folder.write_summary(experiment.summarise(folder.records, config))
        with explained(path):
            experiment.plot(path)
    return path


def run_profile(
    profile: str, out: str | Path, overrides: Mapping[str, Any] | None = None, say: Callable[[str], None] = print
) -> list[Path]:
    """Runs what a profile lists, in order, and returns the results folders; finished ones are left as they are.

    overrides: settings for every run, over the profile's own. say: takes one line of progress per run. Everything
    is checked before the first run starts, so that no mistake in the last one costs hours.
    """
    runs = load_profile(profile, overrides)
    folders = [result_folder(name, config, out) for name, config in runs]
    if len(set(folders)) < len(folders):
        raise ReplicationError(f"profile '{profile}' lists the same experiment, model and data set twice")
    check_runs(runs, out)
    for number, ((name, config), folder) in enumerate(zip(runs, folders, strict=True), start=1):
        skip = is_finished(folder, config)
        line = f"[{number}/{len(runs)}] {name} · {model_label(config.model)} · {folder.name}"
        say(line + " · already done" * skip)
        if not skip:
            run_one(name, config, out)
    return folders


def load_profile(profile: str, overrides: Mapping[str, Any] | None = None) -> list[tuple[str, Config]]:
    """(experiment, config) of every run of a profile; ReplicationError says what is wrong with the file."""
    path = find_profiles()[profile]
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ReplicationError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from error
    _check_keys(path.name, content, _PROFILE_KEYS, _PROFILE_KEYS)
    runs = []
    for number, run in enumerate(content["runs"] or [], start=1):
        _check_keys(f"run {number} of {path.name}", run, _RUN_KEYS, _RUN_KEYS - {"set"})
        hints = get_type_hints(find_experiments()[run["experiment"]].Config)
        # not every experiment has a device or a dtype
        settings = {**(run.get("set") or {}), **{k: v for k, v in (overrides or {}).items() if k in hints}}
        runs.append((run["experiment"], configure(run["experiment"], run["model"], run["dataset"], settings)))
    return runs


def check_runs(runs: list[tuple[str, Config]], out: str | Path) -> None:
    """Raises ReplicationError for anything that would stop one of the runs: model, data set, device, folder.

    An experiment whose inputs are others than a causal model and a RAG data set has a `check(config)` of its own.
    """
    own = {name: module.check for name, module in find_experiments().items() if hasattr(module, "check")}
    for model in dict.fromkeys(config.model for name, config in runs if name not in own):
        model_source(model)
    for name, config in runs:
        if name in own:
            own[name](config)
        else:
            check_device(config.device, config.dtype)
            load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
        folder = result_folder(name, config, out)
        if (folder / "provenance.json").exists():
            RunFolder(folder, recorded(config))


def is_finished(folder: Path, config: Config) -> bool:
    """Whether this very config has been run, summarised and drawn in `folder`."""
    try:
        same = json.loads((folder / "provenance.json").read_bytes())["config"] == recorded(config)
        return same and bool(json.loads((folder / "summary.json").read_bytes())) and (folder / "figure.png").exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def model_source(model: str) -> str | Path:
    """What transformers loads `model` from; ReplicationError when it is unknown, not installed or out of reach."""
    if model in EMBEDDED:
        return embedded_directory(model)
    if Path(model).is_dir():
        if not Path(model, "config.json").is_file():
            raise ReplicationError(f"directory {model} holds no transformers model: it has no config.json")
        return model
    near = difflib.get_close_matches(model, EMBEDDED, n=1)
    if near:
        raise ReplicationError(f"unknown model '{model}'; did you mean {near[0]}?")
    from huggingface_hub.utils import logging
    from transformers import AutoConfig  # slow to import, and only a hub id needs it

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # lines about retries would come before the one that says what to do
    try:
        AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ReplicationError(
            f"cannot reach model '{model}': give one of {', '.join(EMBEDDED)}, a directory that holds a transformers "
            "model, or a hub id with internet"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    return model


def check_device(device: str, dtype: str) -> None:
    known = Registry("dtype")
    known.update(DTYPES)
    try:
        torch.zeros(1, device=device, dtype=known[dtype])
    except (RuntimeError, AssertionError) as error:
        raise ReplicationError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from error


def _check_keys(where: str, content: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(content, dict):
        raise ReplicationError(f"{where} is no mapping; it takes {', '.join(sorted(known))}")
    keys = Registry(f"key in {where}")
    keys.update(dict.fromkeys(known))
    for key in content:
        keys[key]
    missing = sorted(needed - content.keys())
    if missing:
        raise ReplicationError(f"{where} lacks {', '.join(missing)}")


def _converted(key: str, value: Any, kind: Any) -> Any:
    """`value` as a field of type `kind`; ReplicationError names the type that was expected."""
    try:
        return _as(kind, value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        shown = value if isinstance(value, str) else repr(value)
        raise ReplicationError(f"bad value '{shown}' for {key}: expected {_kind_name(kind)}") from error


def _as(kind: Any, value: Any) -> Any:
    options = get_args(kind)
    if NoneType in options:
        rest = next(option for option in options if option is not NoneType)
        return None if value is None or value == "none" else _as(rest, value)
    if get_origin(kind) is tuple:
        items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        return tuple(_as(options[0], item) for item in items)
    if kind is bool:
        return value if isinstance(value, bool) else _BOOLS[value.lower()]
    if isinstance(value, bool) or (kind is int and isinstance(value, float)) or (kind is str and value is None):
        raise TypeError
    if kind is str and not isinstance(value, (str, int, float, Path)):
        raise TypeError
    return kind(value)


def _kind_name(kind: Any) -> str:
    options = get_args(kind)
    if NoneType in options:
        return f"{_kind_name(next(o for o in options if o is not NoneType))} or none"
    if get_origin(kind) is tuple:
        return f"{'numbers' if options[0] in (int, float) else 'names'} separated by commas"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
