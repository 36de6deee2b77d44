"""Pipelines that answer from each passage alone and combine the answers (LangChain's; A-11, paper sec. 7.1).

They are no way to fill a cache, but several prefills and generations, so their result is an answer and its times. All
their prompts have the format of the other methods' prompt, where LangChain's have a wording of their own.
"""

import re
import time
from dataclasses import dataclass

import torch

from replication.data.example import Passage
from replication.decode import generate
from replication.fuse import Prefill
from replication.methods import make_method
from replication.metrics.answers import first_line
from replication.model import Model
from replication.prompt import ChunkedPrompt, PromptFormat, answer_ids, build_prompt
from replication.registry import Registry
from replication.store import MemoryStore

SCORE_CUE = "Score from 0 to 100 of how well the passage answers the question:"
SCORE_TOKENS = 4

PIPELINES = Registry("pipeline")


@dataclass(frozen=True)
class Answered:
    """text: first line of the answer. tokens: prompt tokens prefilled, over all prompts. maps: seconds that each
    passage took, one after the other. ttft: seconds until the first token of `text` could be sent; less
    `sum(maps) - max(maps)` if all passages ran at the same time and as fast as alone."""

    text: str
    tokens: int
    maps: tuple[float, ...]
    ttft: float


@PIPELINES.register("map-reduce")
def map_reduce(
    model: Model,
    passages: tuple[Passage, ...],
    question: str,
    style: PromptFormat,
    new_tokens: int = 16,
) -> Answered:
    """MapReduce: an answer from each passage alone, then an answer from these, which stand in the passages' places.

    new_tokens: most tokens of each answer. Errors: ReplicationError as `build_prompt`.
    """
    prompts = _alone(model, passages, question, style)
    found, maps = [], []
    for passage, prompt in zip(passages, prompts, strict=True):
        begun = time.perf_counter()
        text = first_line(generate(model, prompt.ids, _prefill(model, prompt), new_tokens))
        maps.append(time.perf_counter() - begun)
        found.append(Passage(passage.title, text))
    begun = time.perf_counter()
    last = build_prompt(tuple(found), question, model.tokenizer, style, model.context)
    prefill = _prefill(model, last)
    ttft = sum(maps) + time.perf_counter() - begun
    text = first_line(generate(model, last.ids, prefill, new_tokens))
    return Answered(text, sum(len(p) for p in (*prompts, last)), tuple(maps), ttft)


@PIPELINES.register("map-rerank")
def map_rerank(
    model: Model,
    passages: tuple[Passage, ...],
    question: str,
    style: PromptFormat,
    new_tokens: int = 16,
) -> Answered:
    """MapRerank: an answer from each passage alone with a score that the model writes; the highest score wins.

    Where scores tie (a small model often writes the same one, or none) the likelier answer wins, a blank one never.
    new_tokens: most tokens of each answer. Errors: ReplicationError as `build_prompt`.
    """
    prompts = _alone(model, passages, question, style)
    ranked, maps = [], []
    for prompt in prompts:
        begun = time.perf_counter()
        prefill = _prefill(model, prompt)
        text = first_line(generate(model, prompt.ids, prefill, new_tokens))
        ranked.append((text != "", *_judged(model, prompt, prefill, text, style), text))
        maps.append(time.perf_counter() - begun)
    # no answer is chosen, and none can be sent, before the last passage has been read
    return Answered(max(ranked)[-1], sum(len(p) for p in prompts), tuple(maps), sum(maps))


def written_score(text: str) -> int:
    """The number from 0 to 100 that a text begins with; -1 where there is none."""
    match = re.match(r"\s*(\d+)", text)
    score = int(match[1]) if match else -1
    return score if score <= 100 else -1


@torch.inference_mode()
def _judged(
    model: Model, prompt: ChunkedPrompt, prefill: Prefill, answer: str, style: PromptFormat
) -> tuple[int, float]:
    """The score that the model writes behind its answer, and the answer's mean log-probability in nats per token."""
    said = answer_ids(answer, model.tokenizer, style)
    cue = SCORE_CUE if style.template == "plain" else f"\n{SCORE_CUE}"
    asked = (*said, *model.tokenizer(cue, add_special_tokens=False)["input_ids"])
    prefill.cache.crop(len(prompt) - prefill.cache.get_seq_length())
    logits = model.lm(input_ids=model.tensor(asked), cache=prefill.cache, use_cache=True).logits[0]
    before = torch.cat([prefill.logits[None], logits[: len(said) - 1]]).float().log_softmax(-1)
    likelihood = before.gather(1, model.tensor(said).T).mean().item() if said else float("-inf")
    go_on = Prefill(prefill.cache, logits[-1], prefill.report)
    return written_score(generate(model, (*prompt.ids, *asked), go_on, SCORE_TOKENS)), likelihood


def _alone(model: Model, passages: tuple[Passage, ...], question: str, style: PromptFormat) -> list[ChunkedPrompt]:
    """The prompt of each passage without the others; where there is none at all, `build_prompt` says what is wrong."""
    groups = [(passage,) for passage in passages] or [()]
    return [build_prompt(group, question, model.tokenizer, style, model.context) for group in groups]


def _prefill(model: Model, prompt: ChunkedPrompt) -> Prefill:
    return make_method("full").prefill(model, prompt, MemoryStore())
