"""Which tokens are picked: by place in their chunk, class of token, and chunk (A-05).

FusionRAG (2601.12904) reports that CacheBlend picks chunk heads and later chunks.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, by_cell, load_inputs, require_positive
from experiments.insight_figures import picked_tokens_figure
from experiments.reuse_common import candidates, full_prefill, reused
from replication.errors import ReplicationError
from replication.fuse import fuse
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.records import RunFolder
from replication.selectors import Selector
from replication.selectors.hkvd import HKVD
from replication.selectors.oracle import Oracle
from replication.stats import mean_ci

TITLE = "Which tokens are picked: chunk heads, token classes, chunks"
FEATURES = ("place", "class", "chunk")
# places of a token in its chunk, from 0: each bin is twice as wide as the one before
PLACES = ("0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128 on")
HEADS = PLACES[:3]
_WORDS = """a an the and or but of in on at by for from to with as is was were are be been it its he she they his her
    their this that which who whom not no has had have also after before into over under than then there when where"""
FUNCTION_WORDS = frozenset(_WORDS.split())


@dataclass(frozen=True)
class Config(RagConfig):
    """ratio: share of the reused tokens that is picked, once, in layer 1."""

    n: int = 60
    ratio: float = 0.15

    def __post_init__(self):
        require_positive(self, "n", "passages")
        self.selectors()
        if not self.ratio:
            raise ReplicationError("ratio must be above 0: nothing would be picked")

    def selectors(self) -> dict[str, Selector]:
        """By deviation of K, V or both in layer 1; and by the true deviation over all layers."""
        return {kind: HKVD(self.ratio, deviation=kind) for kind in ("KV", "K", "V")} | {"oracle": Oracle(self.ratio)}


def run(config: Config, folder: RunFolder) -> None:
    """Counts of picked tokens and of all tokens on every example; finished ones are not repeated."""
    inputs = load_inputs(config, folder)
    done = folder.done(("kind", "example", "cell"))
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), "picks", unit="example"):
        todo = [(n, s) for n, s in config.selectors().items() if ("picked", example.id, n) not in done]
        if not todo:
            continue
        stored, truth = reused(inputs.model, prompt), full_prefill(inputs.model, prompt).cache
        kinds = features(inputs.model, prompt)
        tokens = candidates(stored).tolist()
        for name, selector in todo:
            picked = set(fuse(stored, selector, truth).report.selected)
            counts = {feature: _counts(kinds[feature], tokens, picked) for feature in FEATURES}
            folder.append({"kind": "picked", "example": example.id, "cell": name, **counts})


def features(model: Model, prompt: ChunkedPrompt) -> dict[str, dict[int, str]]:
    """Of each passage token, by its prompt index: place in its chunk, class, and number of its chunk from 1."""
    found = {feature: {} for feature in FEATURES}
    passages = [s for s in prompt.segments if s.kind == "passage"]
    for number, passage in enumerate(passages, start=1):
        for offset, token in enumerate(passage.ids):
            index = passage.start + offset
            found["place"][index] = PLACES[min(offset.bit_length(), len(PLACES) - 1)]
            found["class"][index] = token_class(model.tokenizer.decode([token]))
            found["chunk"][index] = str(number)
    return found


def token_class(text: str) -> str:
    """`punctuation` (nothing but it and spaces), `number`, `function word`, `capitalised` or `other`."""
    word = text.strip()
    if not any(c.isalnum() for c in word):
        return "punctuation"
    if any(c.isdigit() for c in word):
        return "number"
    if word.lower() in FUNCTION_WORDS:
        return "function word"
    return "capitalised" if word[0].isupper() else "other"


def _counts(kinds: dict[int, str], tokens: Iterable[int], picked: set[int]) -> dict[str, list[int]]:
    """Of each kind, how many tokens are picked, and how many there are."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for token in tokens:
        found[kinds[token]][0] += token in picked
        found[kinds[token]][1] += 1
    return found


def summarise(records: list[dict], config: Config) -> dict:
    """Lift of each kind of token: the share of it that is picked over the share of all that is; 1 is no preference.
    heads: lift of the first 4 tokens of a chunk; last_minus_first: lift of the last chunk less that of the first."""
    summary = {}
    for name, examples in by_cell(records, "picked").items():
        rows = list(examples.values())
        summary[name] = {f: _lifts([r[f] for r in rows]) for f in FEATURES}
        heads = [_lift(r["place"], HEADS) for r in rows]
        chunks = [sorted(r["chunk"], key=int) for r in rows]
        apart = [_lift(r["chunk"], c[-1:]) - _lift(r["chunk"], c[:1]) for r, c in zip(rows, chunks, strict=True)]
        summary[name] |= {"heads": mean_ci(heads), "last_minus_first": mean_ci(apart)}
    return summary | {"n": config.n}


def _lifts(counts: list[dict[str, list[int]]]) -> dict[str, dict]:
    kinds = {kind for found in counts for kind in found}
    return {kind: mean_ci([_lift(found, (kind,)) for found in counts if kind in found]) for kind in kinds}


def _lift(counts: dict[str, list[int]], kinds: Iterable[str]) -> float:
    picked, tokens = (sum(counts[kind][i] for kind in kinds if kind in counts) for i in (0, 1))
    all_picked, all_tokens = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    return picked / tokens / (all_picked / all_tokens)


def plot(folder: Path) -> None:
    picked_tokens_figure(folder)
