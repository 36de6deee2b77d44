"""What each difference of DEVIATIONS.md was measured to do."""

from dataclasses import dataclass
from pathlib import Path

from replication.claims_table import estimate_text
from replication.writeup.values import found


@dataclass(frozen=True)
class Effect:
    """about: what `metric` (dotted path into the experiment's summary.json) says."""

    about: str
    experiment: str
    metric: str


def _ablation(about: str, variant: str) -> Effect:
    return Effect(f"{about}: KL over the baseline's", "ablations", f"over_baseline.{variant}.kl_first_ratio")


def _compared(about: str, pair: str) -> Effect:
    return Effect(f"{about}: ratio of KL", "quality_vs_ttft", f"compare.{pair}.kl_first_ratio")


EFFECTS = {
    "variants": [
        Effect(f"KL to full prefill, {name}", "quality_vs_ttft", f"cells.cacheblend-{variant}@15.kl_first")
        for variant, name in (("paper", "the paper"), ("author", "the authors' code"), ("lmcache", "LMCache"))
    ],
    "score": [
        _ablation("squared deviation of V (authors)", "score: V, squared"),
        _ablation("squared deviation of K (LMCache)", "score: K, squared"),
        _ablation("deviation of K", "score: K"),
        _ablation("attention deviation", "score: attention"),
    ],
    "schedule": [
        Effect("gradual over fixed: ratio of KL", "schedule", "gradual_over_fixed.15.kl_first_ratio"),
        Effect("gradual over fixed: ratio of operations", "schedule", "gradual_over_fixed.15.operations_ratio"),
    ],
    "check-layer": [
        Effect(f"chosen in layer {layer}: KL over that of layer 1", "schedule", f"over_layer_1.{layer}.kl_first_ratio")
        for layer in (0, 2, 6, 10)
    ],
    "write-back": [_ablation("chosen tokens only", "write-back: chosen tokens only")],
    "mask": [
        _ablation("authors' mask", "mask: bottom right"),
        Effect(
            "LMCache's mask less an exact one: KL, nats",
            "lmcache_differences",
            "compare.lmcache mask/lmcache.kl_first_difference",
        ),
    ],
    "suffix": [_ablation("last token only", "suffix: last token only")],
    "all-of-the-authors": [
        _ablation("V squared, their mask, last token only", "authors: V, bottom right, last token only")
    ],
    "rotation": [_ablation("deviation of K before rotation", "score: K before rotation")],
    "bos": [
        _ablation("no BOS", "BOS: none"),
        _ablation("a BOS before every chunk, dropped", "BOS: dropped"),
        _ablation("a BOS before every chunk, kept", "BOS: kept"),
    ],
    "sink": [
        Effect("share of naive's KL that the beginnings cause", "naive_concatenation", "shapley.sink.share"),
        _compared(
            "CacheBlend at 15 % over nothing recomputed behind the shared prefix", "cacheblend-paper@15/shared-prefix"
        ),
    ],
    "separators": [
        Effect(
            "LMCache's zeroed separators less fresh ones: KL, nats",
            "lmcache_differences",
            "compare.lmcache/ours.kl_first_difference",
        ),
        Effect("part of LMCache's budget spent on separators", "lmcache_differences", "budget_for_separators"),
        Effect(
            "part of the stored tokens found when the separator is encoded with its first token",
            "lmcache_differences",
            "used.whole",
        ),
    ],
    "look-up": [
        Effect(
            "part of the stored tokens that LMCache uses behind a missing passage",
            "lmcache_differences",
            "used.lmcache missing",
        ),
        Effect(
            "LMCache's prefix over all that is stored: ratio of KL",
            "lmcache_differences",
            "compare.lmcache missing/ours missing.kl_first_ratio",
        ),
    ],
    "ratio": [
        Effect(f"KL to full prefill at {ratio} %", "quality_vs_ttft", f"cells.cacheblend-paper@{ratio}.kl_first")
        for ratio in (1, 5, 15, 30, 50, 100)
    ],
    "loading": [
        Effect("overlapped over one after the other, 0.1 GB/s: TTFT", "loading", "devices.0.1 GB/s.over_sequential"),
        Effect("error of the paper's formula for TTFT, overlapped", "loading", "error.pipelined"),
        *(
            Effect(
                f"bytes a second that come from the device of {rate} GB/s",
                "loading",
                f"controller.{rate} GB/s.throughput",
            )
            for rate in ("0.1", "1", "5")
        ),
    ],
    "ceiling": [
        Effect(f"{name}: largest speed-up over its ceiling", name, metric)
        for name, metric in (
            ("ttft", "worst.over_ceiling"),
            ("quality_vs_ttft", "over_ceiling"),
            ("quality", "over_ceiling"),
        )
    ],
    "over-prefix": [
        Effect(
            f"TTFT of an exact prefix cache over that of CacheBlend at {percent} %",
            "quality_vs_ttft",
            f"cells.cacheblend-paper@{percent}.over_prefix",
        )
        for percent in (5, 15)
    ],
    "answerable": [
        Effect("questions with a gold answer in their passages", "quality", "answerable.share"),
        Effect(
            "on these alone, likelihood that CacheBlend at 15 % gains over full reuse, nats a token",
            "quality",
            "answerable.nll_gain",
        ),
    ],
    "ttft": [
        Effect(f"{part}, s (fp32, 2,048 tokens)", "ttft", f"places.float32 2048.cells.cacheblend-paper@15.{metric}")
        for part, metric in (
            ("the whole TTFT", "ttft"),
            ("of it, look-up", "parts.lookup"),
            ("of it, loading", "parts.load"),
            ("of it, moving keys", "parts.rotate"),
        )
    ],
    "baselines": [
        _compared("CacheBlend over a random choice", "cacheblend-paper@15/random@15"),
        _compared("CacheBlend over a uniform stride", "cacheblend-paper@15/uniform@15"),
        _compared("CacheBlend over each chunk's first k tokens", "cacheblend-paper@15/first-k@15"),
        _compared("CacheBlend over the oracle", "cacheblend-paper@15/oracle@15"),
    ],
    "worked-example": [
        Effect("loading a layer of Llama-7B, ms", "loading", "paper.llama-7b.load_ms"),
        Effect("loading a layer of Llama-70B, ms", "loading", "paper.llama-70b.load_ms"),
        Effect("recomputing 15 % of a layer of Llama-70B, ms", "loading", "paper.llama-70b.recompute_ms"),
    ],
    "answers": [
        Effect("full prefill's F1 on words", "quality", "cells.full.f1"),
        Effect("the same on the model's tokens", "quality", "cells.full.f1_tokens"),
    ],
}


def effect(root: Path, name: str) -> str:
    """Markdown: a line for each effect, and the command for what is not measured yet."""
    lines, missing = [], {}
    for part in EFFECTS[name]:
        places = found(root, part.experiment, part.metric)
        values = [f"{estimate_text(p.estimate, 'value')} ({p.model}, {p.dataset})" for p in places]
        if values:
            lines.append(f"- {part.about}: {'; '.join(values)}")
        else:
            missing.setdefault(part.experiment, []).append(part.about)
    for experiment, abouts in missing.items():
        command = f"python -m replication run {experiment} --out results"
        lines.append(f"- not measured yet: {'; '.join(abouts)}. `{command}`")
    return "\n".join(lines) + "\n"
