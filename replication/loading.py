"""The loading controller: which share to recompute, and which device to store on, so that neither waits for the
other (paper sec. 5.1; A-17, A-18). Times in seconds, sizes in bytes, throughput in bytes per second.

Profiled beforehand are the full prefill of a prompt's length and each device's throughput. Either all times are of
the whole prompt or all are of one layer: the formulas are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Below it the paper sees the quality drop (r*, sec. 5.1)
LEAST_RATIO = 0.15


@dataclass(frozen=True)
class Device:
    """A place to keep KV. throughput: bytes/s, as measured. price: of one byte for one second, in any currency."""

    name: str
    throughput: float
    price: float


def recompute_seconds(ratio: float, prefill: float) -> float:
    """T_recompute(r, LLM, L) = r x Prefill(LLM, L)."""
    return ratio * prefill


def load_seconds(bytes_per_token: float, tokens: int, throughput: float) -> float:
    """T_load(LLM, L, device) = PerTokenKVSize(LLM) x L / Throughput(device)."""
    return bytes_per_token * tokens / throughput


def storage_cost(bytes_per_token: float, tokens: int, seconds: float, device: Device) -> float:
    """C_store(LLM, L, T, device): what it costs to keep the KV of L tokens for T seconds."""
    return bytes_per_token * tokens * seconds * device.price


def hidden_ratio(prefill: float, load: float) -> float:
    """The recompute ratio with T_recompute = T_load: recomputing it takes as long as loading. At most 1."""
    return min(1.0, load / prefill)


def choose_ratio(prefill: float, load: float, least: float = LEAST_RATIO) -> float:
    """What the controller picks: the ratio that loading hides, but not less than quality needs."""
    return max(least, hidden_ratio(prefill, load))


def cheapest_device(
    devices: Sequence[Device], bytes_per_token: float, tokens: int, prefill: float, ratio: float = LEAST_RATIO
) -> Device | None:
    """The cheapest device from which loading takes no longer than recomputing `ratio`; None if all are too slow."""
    hidden = recompute_seconds(ratio, prefill)
    enough = [d for d in devices if load_seconds(bytes_per_token, tokens, d.throughput) <= hidden]
    return min(enough, key=lambda d: storage_cost(bytes_per_token, tokens, 1.0, d), default=None)


def pipeline_seconds(load: Sequence[float], compute: Sequence[float], ahead: int = 1) -> float:
    """Seconds until the last layer is computed. load, compute: per layer, of which there is at least one.

    The loader may start a layer once the one `ahead` places before it has been handed out; with 0, once it is asked
    for. So 0 gives the sequential sum, and 1 the paper's pipeline (sec. 6), load_0 + sum_i max(compute_i, load_i+1).
    """
    handed: list[float] = []
    loaded = computed = 0.0
    for index, (reading, computing) in enumerate(zip(load, compute, strict=True)):
        if ahead == 0:
            loaded = max(loaded, computed)
        elif index >= ahead:
            loaded = max(loaded, handed[index - ahead])
        loaded += reading
        handed.append(max(loaded, computed))
        computed = handed[-1] + computing
    return computed
