"""The variants that `ablations` measures: each differs from the baseline in one thing, but one in all that the authors'
code does otherwise."""

from dataclasses import dataclass, replace

import torch

from experiments.reuse_common import watched_fuse
from replication.data import RagExample
from replication.metrics.deviation import delta_kv
from replication.model import Model
from replication.prompt import ChunkedPrompt, PromptFormat, build_prompt, chain
from replication.selectors import Selector
from replication.selectors.base import View
from replication.selectors.hkvd import HKVD
from replication.stored import StoredKV

BASELINE = "baseline"
NO_BOS, BOS_DROPPED, BOS_KEPT = "BOS: none", "BOS: dropped", "BOS: kept"


@dataclass(frozen=True)
class Variant:
    """causal: recomputed tokens see earlier ones only, or have the authors' mask. whole_question: the question is
    computed afresh; or only its last token is, and the rest of it is a cached chunk like a passage. bos: whether the
    prompt starts with a BOS (None: as configured). bos_kept: every cached passage keeps its own."""

    selector: Selector
    causal: bool = True
    whole_question: bool = True
    bos: bool | None = None
    bos_kept: bool = False


@dataclass(frozen=True)
class Keys(Selector):
    """The paper's deviation of keys alone, after rotary embedding or before it. (The squared deviation is the same.)"""

    rotated: bool = True

    def score(self, view: View) -> torch.Tensor:
        pair = [keys.clone() for keys in (view.fresh[0], view.stored[0])]
        if not self.rotated:
            rotation = view.kv.model.rotation
            angles = rotation.angles(-view.candidates, pair[0].dtype)
            for keys in pair:
                rotation.move(view.layer, keys, angles)
        return delta_kv(*pair)


@dataclass(frozen=True)
class Given(Selector):
    """The tokens of highest `scores` [tokens before the question]."""

    scores: torch.Tensor | None = None

    def score(self, view: View) -> torch.Tensor:
        return self.scores[view.candidates]


def variants(ratio: float, attention: torch.Tensor | None, model: Model, prompt: ChunkedPrompt) -> dict[str, Variant]:
    """Every variant by its name, `prompt` being the baseline's and `attention` its scores by `attention_scores` (None
    where only names are wanted)."""
    paper = Variant(HKVD(ratio))
    found = {
        BASELINE: paper,
        "score: V, squared": Variant(HKVD(ratio, deviation="V")),
        "score: K, squared": Variant(HKVD(ratio, deviation="K")),
        "score: K": Variant(Keys(ratio)),
        "score: K before rotation": Variant(Keys(ratio, rotated=False)),
        "score: attention": Variant(Given(ratio, scores=attention)),
        "write-back: chosen tokens only": Variant(HKVD(ratio, write_back=False)),
        "mask: bottom right": replace(paper, causal=False),
        "suffix: last token only": replace(paper, whole_question=False),
        "authors: V, bottom right, last token only": Variant(HKVD(ratio, deviation="V"), False, False),
    }
    if model.tokenizer.bos_token_id is not None:
        other = replace(paper, bos=not prompt.bos)
        found |= {NO_BOS if prompt.bos else BOS_DROPPED: other, BOS_KEPT: replace(paper, bos=True, bos_kept=True)}
    return found


def attention_scores(stored: StoredKV, prompt: ChunkedPrompt, last: int) -> torch.Tensor:
    """By how much stored keys change the attention that the last tokens pay to each token before the question in layer
    1: sum over heads and last tokens of absolute differences, [tokens before the question].

    Up to layer 1 full reuse is exact but for the keys there, so it gives the very queries that a check layer has.
    """
    _, kept = watched_fuse(stored, Selector(ratio=0), prompt, last)
    _, true = watched_fuse(StoredKV(stored.model, prompt.ids, []), Selector(ratio=0), prompt, last)
    return (true[1] - kept[1]).abs().sum(dim=(0, 1))


def prompts(
    variant: Variant, example: RagExample, style: PromptFormat, model: Model
) -> tuple[ChunkedPrompt, ChunkedPrompt]:
    """What the variant fuses, and the prompt whose full prefill it should equal."""
    if variant.bos is not None:
        style = replace(style, bos=variant.bos)
    whole = build_prompt(example.passages, example.question, model.tokenizer, style, model.context)
    *context, question = [(s.kind, s.ids) for s in whole.segments]
    if variant.bos_kept:
        context = [(kind, whole.bos + ids if kind == "passage" else ids) for kind, ids in context]
    if variant.whole_question:
        # with a BOS of its own, a chunk stands behind no other
        return chain([*context, question], () if variant.bos_kept else whole.bos), whole
    cached, fresh = ("passage", question[1][:-1]), ("question", question[1][-1:])
    return chain([*context, cached, fresh], whole.bos), whole
