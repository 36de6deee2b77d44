"""Peak memory of one blend at a fixed length, in units of the prompt's KV (S-22)."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from experiments.common import identify
from experiments.figures import memory_figure
from experiments.fixed_length import FixedLengthConfig
from replication.data import load
from replication.measure import Request
from replication.memory import peak_bytes, resident_bytes
from replication.methods import make_method
from replication.model import load_model
from replication.records import RunFolder

TITLE = "Peak memory of a blend at a fixed length, in units of the prompt's KV"
METHOD = "cacheblend-paper"


@dataclass(frozen=True)
class Config(FixedLengthConfig):
    def __post_init__(self):
        super().__post_init__()
        make_method(METHOD, self.ratio)


def run(config: Config, folder: RunFolder) -> None:
    """Each dtype and length in a process of its own, because what other work left on the heap would count as well."""
    for dtype in config.dtypes:
        for length in config.lengths:
            if ("memory", dtype, length) in folder.done(("kind", "dtype", "length")):
                continue
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                inputs, memory = process.submit(measure, config, dtype, length).result()
            identify(folder, {"kind": f"inputs {dtype}", **inputs})
            folder.append({"kind": "memory", "dtype": dtype, "length": length, **memory})


def measure(config: Config, dtype: str, length: int) -> tuple[dict, dict]:
    """Model and data; and the peak of one blend over the loaded model, its stored chunks included.

    kernels_bytes: what the first blend leaves behind for good (oneDNN compiles products for each number of rows); it
    belongs to the process, not to a blend, and is not in the peak. Where the system does not tell, both are None.
    """
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model = load_model(config.model, dtype, config.device)
    prompt = config.prompt(model, loaded, length)
    fresh = resident_bytes(model.device)
    prefill = Request(model, prompt).prefill(METHOD, config.ratio)
    kv = sum(layer.keys.nbytes + layer.values.nbytes for layer in prefill.cache.layers)
    del prefill
    before = resident_bytes(model.device)
    request = Request(model, prompt)
    request.prefill(METHOD, config.ratio)  # builds the chunks
    peak = peak_bytes(model.device, lambda: request.prefill(METHOD, config.ratio))
    known = peak is not None
    memory = {
        "kv_bytes": kv,
        "peak_in_kv": (peak - before) / kv if known else None,
        "kernels_bytes": before - fresh if known else None,
    }
    return {"model": model.weights, "data": loaded.provenance}, memory


def summarise(records: list[dict], config: Config) -> dict:
    """What was measured at each dtype and length, and the worst of them."""
    measured = [r for r in records if r["kind"] == "memory"]
    places = {
        f"{r['dtype']} {r['length']}": {k: r[k] for k in r if k not in ("kind", "dtype", "length")} for r in measured
    }
    peaks = [place["peak_in_kv"] for place in places.values()]
    return {"places": places, "worst": {"peak_in_kv": None if None in peaks else max(peaks)}}


def plot(folder: Path) -> None:
    memory_figure(folder)
