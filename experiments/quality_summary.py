"""The quality experiment's records summed up: each value's cells, and what the values have to do with each other."""

import numpy as np

from experiments.cells import gate, over_ceiling, paired, reported, speedups
from experiments.common import by_cell, means
from experiments.pipelines import SPEEDUPS, pipeline_speedups
from experiments.sweeps import SWEEPS
from replication.mapping import PIPELINES
from replication.measure import cell
from replication.stats import RESAMPLES, equivalence, mean_ci, paired_difference, wilson

# The paper's margins: a drop of 0.02 is no loss (sec. 7.2), and fig. 15 looks for the ratio that loses at most 0.015.
MARGIN = 0.02
LIMITS = {"first": 0.015, "nll": 0.1}


def at(records: list[dict], value: float) -> list[dict]:
    """The records of one value of the sweep."""
    return [record for record in records if record.get("value") == value]


def summary(records: list[dict], config) -> dict:
    """`places`: what was found at each value; across them: how the gaps to full prefill grow, and the worst value.

    In the ratio sweep there is one place, which is the summary itself.
    """
    places = {value: _Place(at(records, value), config) for value in config.prompt_values}
    head = {"n": config.n, "sweep": config.sweep, "ratio": config.ratio, "metric": config.style.task.metrics[0]}
    if not SWEEPS[config.sweep].prompts:
        return head | next(iter(places.values())).summary()
    found = list(places.values())
    return head | {
        "places": {f"{value:g}": place.summary() for value, place in places.items()},
        "trend": _trend(found),
        "worst": _worst(found),
        "needed_range": _needed_range(found),
        "spread": _spread(found) if config.sweep == "order" else None,
    }


class _Place:
    """The records of one value. quality: cell -> example -> record; first: the task's first metric, None while its
    gate is closed."""

    def __init__(self, records: list[dict], config):
        self.records, self.config = records, config
        # in one order, because values are paired across cells and places, and a resumed run writes in another
        self.quality = {name: dict(sorted(rows.items())) for name, rows in by_cell(records, "quality").items()}
        self.gate = gate(self.quality, config.style.task.metrics)
        name = config.style.task.metrics[0]
        self.first = name if self.gate["open"].get(name) else None
        self.blend = cell(config.curve[0], config.ratio)
        self.ratios = {0.0: "full-reuse"} | {r: cell(config.curve[0], r) for r in sorted(config.curve_ratios)}

    def summary(self) -> dict:
        cells = {name: means(list(found.values()), reported(self.gate)) for name, found in self.quality.items()}
        for name, speeds in speedups(self.records).items():
            cells[name] |= speeds
        for name in self._pipelines():
            cells[name] |= pipeline_speedups(list(self.quality[name].values()))
        equal = {name: self._equivalence(name) for name in self.methods()}
        return {
            "cells": cells,
            "tokens": mean_ci([row["tokens"] for row in self.quality["full"].values()]),
            "gate": self.gate,
            "answerable": self._answerable(),
            "equivalence": equal,
            "no_loss": {name: e if e and e["decided"] else None for name, e in equal.items()},
            "nll_loss": {name: self.difference("nll", name, "full") for name in self.methods()},
            "gain": {name: self.difference(self.first, name, "full-reuse") for name in self.methods()},
            "nll_gain": {name: self.difference("nll", "full-reuse", name) for name in self.methods()},
            "needed": {name: self.needed(name) for name in LIMITS},
            "versus": {name: self._versus(name, cells) for name in PIPELINES},
            "over_ceiling": over_ceiling(cells),
        }

    def difference(self, metric: str | None, a: str, b: str) -> dict | None:
        return None if metric is None else paired_difference(*paired(self.quality, a, b, metric))

    def losses(self, name: str, metric: str) -> list[float]:
        """What a cell loses against full prefill on every example, in the metric's own unit."""
        ours, full = paired(self.quality, name, "full", metric)
        sign = 1 if metric == "nll" else -1
        return [sign * (a - b) for a, b in zip(ours, full, strict=True)]

    def needed(self, name: str) -> dict | None:
        """The least ratio from which on the mean loss is within the limit, nothing recomputed and everything included;
        interval over examples. ceiling: the speed-up that the operation count allows there."""
        metric = self.first if name == "first" else name
        if metric is None:
            return None
        ratios = np.array([*self.ratios, 1.0])
        losses = np.array([self.losses(found, metric) for found in self.ratios.values()])
        n = losses.shape[1]
        drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
        least = ratios[_least(losses.mean(axis=1), LIMITS[name])]
        resampled = ratios[_least(losses[:, drawn].mean(axis=2), LIMITS[name])]
        low, high = np.quantile(resampled, (0.025, 0.975))
        rows = self.quality[self.ratios.get(least, "full")].values()
        return {"value": least, "low": low, "high": high, "n": n, "ceiling": np.mean([row["ceiling"] for row in rows])}

    def methods(self) -> list[str]:
        return [name for name in self.quality if name not in ("full", "no-context", *PIPELINES)]

    def _pipelines(self) -> list[str]:
        return [name for name in self.quality if name in PIPELINES]

    def _versus(self, name: str, cells: dict) -> dict:
        """CacheBlend's first metric less the pipeline's, and how many times faster CacheBlend's TTFT is than the
        pipeline's, passage by passage and with all passages at the same time; None where it was not measured."""
        ours = cells[self.blend].get("speedup") if name in self._pipelines() else None
        return {
            "first": self.difference(self.first if name in self._pipelines() else None, self.blend, name),
            **{key: ours and ours["median"] / cells[name][key]["median"] for key in SPEEDUPS},
        }

    def _equivalence(self, name: str) -> dict | None:
        if self.first is None:
            return None
        return equivalence(*paired(self.quality, name, "full", self.first), margin=MARGIN)

    def _answerable(self) -> dict | None:
        """How many examples have a gold answer in their passages, and, where not all have, on these alone: the cells,
        and what CacheBlend gains over full reuse, in the first metric and in likelihood."""
        if "f1" not in self.config.style.task.metrics:
            return None
        found = {
            name: {example: row for example, row in rows.items() if row["answerable"]}
            for name, rows in self.quality.items()
        }
        total, some = len(self.quality["full"]), len(found["full"])
        share = wilson(some, total)
        if not 0 < some < total:
            return {"share": share, "cells": None, "gain": None, "nll_gain": None}
        gain = self.first and paired_difference(*paired(found, self.blend, "full-reuse", self.first))
        cells = {name: means(list(rows.values()), reported(self.gate)) for name, rows in found.items()}
        likelier = paired_difference(*paired(found, "full-reuse", self.blend, "nll"))
        return {"share": share, "cells": cells, "gain": gain, "nll_gain": likelier}


def _least(losses: np.ndarray, limit: float) -> np.ndarray:
    """Index of the first of losses [ratios, ...] that is within the limit with all after it; one past the end, where
    everything is recomputed, if there is none."""
    lasting = np.logical_and.accumulate((losses <= limit)[::-1])[::-1]
    return np.where(lasting.any(axis=0), lasting.argmax(axis=0), len(losses))


def _trend(places: list[_Place]) -> dict:
    """How much wider the gap to full prefill is at the last value than at the first (positive: wider), paired; and how
    full prefill's own metric changes from the first value to the second, and from the last but one to the last."""
    first, last = places[0], places[-1]
    metric = first.first if all(place.first for place in places) else None
    steps = {"early": places[:2], "late": places[-2:]}
    return {
        "gap": {
            name: {
                "nll": paired_difference(last.losses(name, "nll"), first.losses(name, "nll")),
                "first": metric and paired_difference(last.losses(name, metric), first.losses(name, metric)),
            }
            for name in first.methods()
        },
        "full": {
            name: metric and paired_difference(*(_values(place, "full", metric) for place in (later, earlier)))
            for name, (earlier, later) in steps.items()
        },
    }


def _worst(places: list[_Place]) -> dict:
    """Where CacheBlend does worst, by the bound that counts: its NLL loss against full prefill may be largest there, or
    its NLL gain over full reuse smallest."""
    losses = [place.difference("nll", place.blend, "full") for place in places]
    gains = [place.difference("nll", "full-reuse", place.blend) for place in places]
    return {"nll_loss": max(losses, key=lambda e: e["high"]), "nll_gain": min(gains, key=lambda e: e["low"])}


def _needed_range(places: list[_Place]) -> dict:
    """Largest minus smallest ratio that is needed, over the values."""
    found = {}
    for name in LIMITS:
        values = [needed["value"] for place in places if (needed := place.needed(name))]
        found[name] = max(values) - min(values) if len(values) == len(places) else None
    return found


def _spread(places: list[_Place]) -> dict:
    """Standard deviation over the orders of one example, mean over examples, of each cell's NLL and first metric."""
    metric = places[0].first if all(place.first for place in places) else None
    return {
        name: {
            "nll": _deviation(places, name, "nll"),
            "first": metric and _deviation(places, name, metric),
        }
        for name in ("full", *places[0].methods())
    }


def _deviation(places: list[_Place], name: str, metric: str) -> dict:
    return mean_ci(np.std([_values(place, name, metric) for place in places], axis=0, ddof=1))


def _values(place: _Place, name: str, metric: str) -> list[float]:
    return [row[metric] for row in place.quality[name].values()]
