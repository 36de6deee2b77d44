"""What there is to choose from: names, each with one line."""

import inspect
import re

from replication.runner import find_experiments


def entries(what: str) -> dict[str, str]:
    """Name -> one line, for models, methods, selectors, datasets or experiments."""
    return _LISTS[what]()


def _models() -> dict[str, str]:
    from replication.embedded import EMBEDDED

    return {name: f"{model.note}; {model.install}" for name, model in EMBEDDED.items()}


def _methods() -> dict[str, str]:
    from replication.mapping import PIPELINES
    from replication.methods import METHODS

    pipelines = {name: _first_sentence(answer) for name, answer in PIPELINES.items()}
    return {name: entry.about for name, entry in METHODS.items()} | pipelines


def _selectors() -> dict[str, str]:
    from replication.selectors import SELECTORS

    return {name: _first_sentence(inspect.getmodule(selector)) for name, selector in SELECTORS.items()}


def _datasets() -> dict[str, str]:
    from replication.data import DATASETS
    from replication.data.pairs import PAIRS
    from replication.data.request_log import LOGS

    makers = {**{name: dataset.make for name, dataset in DATASETS.items()}, **LOGS, **PAIRS}
    return {name: _first_sentence(make) for name, make in makers.items()}


def _experiments() -> dict[str, str]:
    return {name: module.TITLE for name, module in find_experiments().items()}


def _first_sentence(thing: object) -> str:
    """Of its docstring; an abbreviation such as `sec. 4` does not end one."""
    text = " ".join((inspect.getdoc(thing) or "").split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]


_LISTS = {
    "models": _models,
    "methods": _methods,
    "selectors": _selectors,
    "datasets": _datasets,
    "experiments": _experiments,
}
