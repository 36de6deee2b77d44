"""What the records of `loading` say: the controller's choices, and predicted against measured TTFT."""

import numpy as np

from replication.loading import (
    Device,
    cheapest_device,
    choose_ratio,
    hidden_ratio,
    load_seconds,
    pipeline_seconds,
    recompute_seconds,
)
from replication.measure import cell
from replication.stats import median_iqr

MODES = ("sequential", "pipelined", "prefetched")  # loading 0 layers ahead of the computation, 1, or all
BLEND, REUSE = "cacheblend-paper", "full-reuse"
# The worked example of sec. 5: one layer of 4K tokens in fp16 from an NVMe disk, 15 % recomputed. text: what
# the paper says, in ms; prefill: of all layers, in s, as the paper measured it.
PAPER = {
    "llama-7b": {"kv_heads": 32, "layers": 32, "prefill": None, "text": {"load": 16, "recompute": 3}},
    "llama-70b": {"kv_heads": 8, "layers": 80, "prefill": 6.0, "text": {"load": 4, "recompute": 7}},
}
PAPER_TOKENS, PAPER_HEAD_DIM, PAPER_RATIO, PAPER_THROUGHPUT = 4096, 128, 0.15, 4.8e9

# A ratio counts as hidden while TTFT is at most this share above that of the least ratio
HIDDEN = 0.1

Rounds = dict[int, float]


def device_name(rate: float) -> str:
    """Of a throttled device of `rate` GB/s."""
    return f"{rate:g} GB/s"


class Times:
    """The records by what was measured. full, ttft: seconds by round. load: seconds [rounds, layers] by device.
    before, compute: by cell, the medians in memory of `stages`."""

    def __init__(self, records: list[dict], config):
        self.config = config
        self.full = {r["round"]: r["seconds"]["ttft"] for r in records if r["kind"] == "full"}
        self.ttft: dict[tuple[str, str, str], Rounds] = {}
        stages: dict[str, list[dict]] = {}
        for record in (r for r in records if r["kind"] == "timing"):
            key = record["device"], record["cell"], record["mode"]
            self.ttft.setdefault(key, {})[record["round"]] = record["seconds"]["ttft"]
            if record["device"] == "memory":
                stages.setdefault(record["cell"], []).append(record["seconds"])
        self.before = {name: float(np.median([s["before"] for s in rows])) for name, rows in stages.items()}
        self.compute = {name: np.median([s["compute"] for s in rows], axis=0) for name, rows in stages.items()}
        loads = [r for r in records if r["kind"] == "load"]
        self.load = {d: np.array([r["seconds"]["load"] for r in loads if r["device"] == d]) for d in config.devices}
        self.tokens, self.bytes_per_token = loads[0]["tokens"], loads[0]["bytes_per_token"]
        self.blend = cell(BLEND, config.ratio)
        self.prefill = float(np.median([*self.full.values()]))

    def of(self, device: str, name: str, mode: str = "pipelined") -> Rounds:
        return self.ttft[device, name, mode]

    def throughput(self, device: str) -> float:
        """Bytes of KV per second that a device gives, checked, moved and in their places."""
        return self.tokens * self.bytes_per_token / float(np.median(self.load[device].sum(axis=1)))

    def predicted(self, device: str, name: str, mode: str) -> float:
        ahead = {"sequential": 0, "pipelined": 1}.get(mode, len(self.compute[name]))
        return self.before[name] + pipeline_seconds(np.median(self.load[device], axis=0), self.compute[name], ahead)


def over(a: Rounds, b: Rounds) -> dict:
    """a / b within each round."""
    return median_iqr([a[number] / b[number] for number in a])


def summary_of(records: list[dict], config) -> dict:
    """Times are medians with quartiles over the rounds; ratios are of the same round."""
    times = Times(records, config)
    controller = {device: _controller(times, device) for device in config.devices}
    devices = {device: _device(times, device) for device in config.devices}
    errors = {
        mode: [
            modes[mode]["error"] for d in config.devices[1:] for modes in devices[d]["cells"].values() if mode in modes
        ]
        for mode in MODES
    }
    return {
        "prefill": {str(n): median_iqr([*_prefills(records, n).values()]) for n in sorted(config.profile)},
        "prefill_growth": over(*(_prefills(records, pick(config.profile)) for pick in (max, min))),
        "full": median_iqr([*times.full.values()]),
        "kv_bytes": times.tokens * times.bytes_per_token,
        "controller": controller,
        "devices": devices,
        "delay_gap": _delay_gap(times),
        "swept": _swept(times, controller[device_name(config.swept)]["ratio"]),
        "cheapest": _cheapest(times),
        "error": {mode: median_iqr(found) for mode, found in errors.items()},
        "exact": all(r["exact"] for r in records if r["kind"] == "timing"),
        "paper": {name: _example(**given) for name, given in PAPER.items()},
        "index": next({k: r[k] for k in ("entries", "bytes_per_entry")} for r in records if r["kind"] == "index"),
        "threads": config.threads,
    }


def _prefills(records: list[dict], length: int) -> Rounds:
    return {r["round"]: r["seconds"]["ttft"] for r in records if r["kind"] == "prefill" and r["length"] == length}


def _controller(times: Times, device: str) -> dict:
    """What the controller knows of a device, and the ratio that it picks there."""
    throughput = times.throughput(device)
    load = load_seconds(times.bytes_per_token, times.tokens, throughput)
    return {
        "throughput": throughput,
        "load": load,
        "recompute": recompute_seconds(times.config.ratio, times.prefill),
        "hidden_ratio": hidden_ratio(times.prefill, load),
        "ratio": choose_ratio(times.prefill, load, times.config.ratio),
    }


def _device(times: Times, device: str) -> dict:
    """TTFT of every cell and mode, measured and predicted; and of the blend: its speed-up over full prefill, its TTFT
    over full reuse's, and over its own without overlap."""
    cells: dict[str, dict] = {}
    for name, mode in ((n, m) for d, n, m in times.ttft if d == device):
        measured, predicted = median_iqr([*times.of(device, name, mode).values()]), times.predicted(device, name, mode)
        error = abs(predicted - measured["median"]) / measured["median"]
        cells.setdefault(name, {})[mode] = {"ttft": measured, "predicted": predicted, "error": error}
    blend = times.of(device, times.blend)
    ratios = {"speedup": over(times.full, blend), "over_reuse": over(blend, times.of(device, REUSE))}
    if (device, times.blend, "sequential") in times.ttft:
        ratios["over_sequential"] = over(blend, times.of(device, times.blend, "sequential"))
        ratios["prefetched_over_pipelined"] = over(times.of(device, times.blend, "prefetched"), blend)
    return {"cells": cells, **ratios}


def _delay_gap(times: Times) -> dict:
    """Seconds by which the blend's TTFT exceeds full reuse's, from memory and from the traced device."""

    def gap(device: str) -> Rounds:
        blend, reuse = times.of(device, times.blend), times.of(device, REUSE)
        return {number: blend[number] - reuse[number] for number in blend}

    fast, slow = gap("memory"), gap(device_name(times.config.traced))
    return {
        "memory": median_iqr([*fast.values()]),
        "slow": median_iqr([*slow.values()]),
        "difference": median_iqr([slow[number] - fast[number] for number in slow]),
    }


def _swept(times: Times, chosen: float) -> dict:
    """TTFT on the swept device at the controller's ratio and at twice that, over TTFT at the least ratio; and the ratio
    at which it exceeds that by `HIDDEN`. Between the measured ratios it is interpolated; None where the least ratio is
    chosen, or the measured ones do not reach."""
    config = times.config
    ratios = [ratio for ratio in sorted(config.ratios) if ratio >= config.ratio]
    rows = [times.of(device_name(config.swept), cell(BLEND, ratio)) for ratio in ratios]
    curves = {number: [row[number] / rows[0][number] for row in rows] for number in rows[0]}

    def at(ratio: float) -> dict | None:
        inside = config.ratio < ratio <= ratios[-1]
        return median_iqr([np.interp(ratio, ratios, curve) for curve in curves.values()]) if inside else None

    return {
        "ratio": chosen,
        "chosen_over_least": at(chosen),
        "twice_over_least": at(2 * chosen),
        "measured_ratio": median_iqr([np.interp(1 + HIDDEN, curve, ratios) for curve in curves.values()]),
    }


def _cheapest(times: Times) -> dict:
    """The device that the controller picks among the throttled ones, and the next cheaper one: TTFT there over TTFT
    from memory. None where there is no such device."""
    config = times.config
    devices = [
        Device(device_name(rate), times.throughput(device_name(rate)), price)
        for rate, price in zip(config.rates, config.prices, strict=True)
    ]
    chosen = cheapest_device(devices, times.bytes_per_token, times.tokens, times.prefill, config.ratio)
    cheaper = [d for d in devices if chosen is None or d.price < chosen.price]
    below = max(cheaper, key=lambda d: d.price, default=None)

    def over_memory(device: Device | None) -> dict | None:
        return device and over(times.of(device.name, times.blend), times.of("memory", times.blend))

    return {
        "device": chosen and chosen.name,
        "over_memory": over_memory(chosen),
        "cheaper_device": below and below.name,
        "cheaper_over_memory": over_memory(below),
    }


def _example(kv_heads: int, layers: int, prefill: float | None, text: dict) -> dict:
    """Milliseconds of one layer by the paper's formulas, beside what its text says."""
    bytes_per_token = 2 * kv_heads * PAPER_HEAD_DIM * 2
    load = 1000 * load_seconds(bytes_per_token, PAPER_TOKENS, PAPER_THROUGHPUT)
    recompute = prefill and 1000 * recompute_seconds(PAPER_RATIO, prefill / layers)
    return {
        "load_ms": load,
        "recompute_ms": recompute,
        "text_load_ms": text["load"],
        "text_recompute_ms": text["recompute"],
    }
