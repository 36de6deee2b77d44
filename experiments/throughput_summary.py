"""What the records of `throughput` say: the queue simulated, the live runs beside it, and batches."""

import numpy as np

from replication.queueing import fifo_seconds, highest_rate, poisson_arrivals
from replication.stats import mean_ci, median_iqr, ratio_of_means, wilson

BLEND = "cacheblend-paper"
BASELINES = ("full", "prefix")


def summary_of(records: list[dict], config) -> dict:
    """Intervals of service times are over requests, those of simulated numbers hold 95 % of the resamples, and those of
    batches are quartiles over rounds. A resample draws the measured requests anew, and their arrivals."""
    services = {m: [r for r in records if r["kind"] == "service" and r["method"] == m] for m in config.methods}
    seconds = {m: np.array([r["seconds"]["ttft"] for r in rows]) for m, rows in services.items()}
    capacity = 1 / seconds["full"].mean()
    limit = config.limit * seconds["full"].mean()
    draws = [_draw(config, seed, len(seconds["full"])) for seed in range(config.resamples)]
    highest = {
        m: [
            highest_rate(lambda rate, m=m, d=d: _ttft(seconds[m], rate, d), limit, 1e-3 / s.max(), 2 / s.mean())
            for d in draws
        ]
        for m, s in seconds.items()
    }
    return {
        "services": {m: _service(rows, seconds) for m, rows in services.items()},
        "recalled": wilson(sum(r["recalled"] for r in services["full"]), len(services["full"])),
        "capacity": capacity,
        "limit": limit,
        "curves": {m: _curve(s, capacity, config, draws) for m, s in seconds.items()},
        "throughput": {m: _spread(found) for m, found in highest.items()},
        "gain": {base: _spread(np.divide(highest[BLEND], highest[base])) for base in BASELINES},
        "live": {r["method"]: _live(r["seconds"]) for r in records if r["kind"] == "live"},
        "batches": _batches([r["seconds"] | {"size": r["size"]} for r in records if r["kind"] == "batch"], config),
        "n": len(services["full"]),
        "threads": services["full"][0]["threads"],
    }


def _draw(config, seed: int, cases: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals at one request a second, and which cases come: the same for every method and rate."""
    rng = np.random.default_rng([seed, 1])  # a stream of its own, for arrivals must not go with cases
    resampled = rng.integers(cases, size=cases)
    return poisson_arrivals(1.0, config.simulated, seed), rng.choice(resampled, config.simulated)


def _spread(values) -> dict:
    low, high = np.quantile(values, (0.025, 0.975))
    return {"mean": float(np.mean(values)), "low": float(low), "high": float(high), "n": len(values)}


def _ttft(seconds: np.ndarray, rate: float, draw: tuple[np.ndarray, np.ndarray]) -> float:
    """Mean TTFT, waiting included, at an arrival rate."""
    arrivals, cases = draw
    return float(fifo_seconds(arrivals / rate, seconds[cases]).mean())


def _service(rows: list[dict], seconds: dict[str, np.ndarray]) -> dict:
    own = seconds[rows[0]["method"]]
    return {
        "ttft": median_iqr(own),
        "speedup": ratio_of_means(seconds["full"], own),
        "reused": mean_ci([r["reused"] / r["tokens"] for r in rows]),
        "tokens": mean_ci([r["tokens"] for r in rows]),
    }


def _curve(seconds: np.ndarray, capacity: float, config, draws: list) -> dict[str, dict]:
    """load, in what full prefill can serve -> mean TTFT, where this method can serve it."""
    able = [load for load in sorted(config.loads) if load * capacity * seconds.mean() < 1]
    return {f"{load:g}": _spread([_ttft(seconds, load * capacity, d) for d in draws]) for load in able}


def _live(seconds: dict) -> dict:
    """Mean TTFT of the live run, and of the queue simulated with the same arrivals and the service times measured
    alone. No intervals: requests that wait for each other are not independent."""
    arrivals, ttft = np.array(seconds["arrivals"]), np.array(seconds["ttft"])
    simulated = fifo_seconds(arrivals, np.array(seconds["service"]))
    return {
        "ttft": float(ttft.mean()),
        "simulated": float(simulated.mean()),
        "over_simulated": float(ttft.mean() / simulated.mean()),
        "rate": len(arrivals) / float(arrivals[-1]),
        "requests": len(arrivals),
    }


def _batches(rows: list[dict], config) -> dict:
    sizes = {size: [r for r in rows if r["size"] == size] for size in config.sizes}
    small, large = (sizes[pick(sizes)] for pick in (min, max))

    def growth(of) -> dict:
        return median_iqr([of(b) / of(a) for a, b in zip(small, large, strict=True)])

    return {
        "sizes": {str(size): _batch(found) for size, found in sizes.items()},
        "prefill_growth": growth(lambda r: r["full"]),
        "decode_growth": growth(lambda r: sum(r["decode"])),
        "share_growth": growth(_share),
        "request_speedup_growth": growth(_request_speedup),
    }


def _share(row: dict) -> float:
    """Of the batch's whole time, the part that full prefill takes."""
    return row["full"] / (row["full"] + sum(row["decode"]))


def _request_speedup(row: dict) -> float:
    """Whole time of the batch, decoding included, with full prefill over that with blends."""
    decode = sum(row["decode"])
    return (row["full"] + decode) / (sum(row["blends"]) + decode)


def _batch(rows: list[dict]) -> dict:
    """prefill_speedup: until every prompt of the batch has its first token. ttft_speedup: mean over the prompts, of
    which the batch gives all at its end, and the blends one after the other."""
    return {
        "full": median_iqr([r["full"] for r in rows]),
        "blends": median_iqr([sum(r["blends"]) for r in rows]),
        "decode": median_iqr([sum(r["decode"]) for r in rows]),
        "share": median_iqr([_share(r) for r in rows]),
        "prefill_speedup": median_iqr([r["full"] / sum(r["blends"]) for r in rows]),
        "ttft_speedup": median_iqr([r["full"] / np.cumsum(r["blends"]).mean() for r in rows]),
        "request_speedup": median_iqr([_request_speedup(r) for r in rows]),
    }
