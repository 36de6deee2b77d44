"""One request under many methods: each has what an earlier request left it, and all answer the same prompt."""

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from replication.data.example import RagExample
from replication.decode import FirstLine, answer_logprobs, generate, sequence_logprob
from replication.device import synchronize
from replication.fuse import Prefill
from replication.methods import METHODS, make_method
from replication.metrics.answers import exact_match, first_line, rank_correct, rouge_l, token_f1
from replication.metrics.cost import ceiling
from replication.model import Model
from replication.prompt import ChunkedPrompt, PromptFormat, answer_ids
from replication.store import MemoryStore
from replication.task import Task

BASELINE = "transformers"


@dataclass
class Request:
    """A prompt that comes after `earlier`, the same passages in reversed order.

    Methods that keep the same share a store, as they would in a service; build: seconds that each store took to fill.
    """

    model: Model
    prompt: ChunkedPrompt
    build: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        passages = sum(s.kind == "passage" for s in self.prompt.segments)
        self.earlier = self.prompt.reordered(list(range(passages))[::-1])
        self._stores: dict[str, MemoryStore] = {}

    def prefill(self, name: str, ratio: float = 0.0) -> Prefill:
        """Fill the prompt's cache by the method `name`, after the earlier request."""
        method, same_order = make_method(name, ratio), METHODS[name].same_order
        kind = method.source.keeps + (" of the same order" if same_order else "")
        if kind not in self._stores:
            self._stores[kind] = MemoryStore()
            earlier = self.prompt if same_order else self.earlier
            self.build[kind] = method.learn(self.model, earlier, self._stores[kind])
        return method.prefill(self.model, self.prompt, self._stores[kind])


@torch.inference_mode()
def transformers_ttft(model: Model, prompt: ChunkedPrompt) -> float:
    """Seconds that transformers' own full prefill takes to the last token's logits (SDPA, cache kept)."""
    begun = time.perf_counter()
    model.lm(input_ids=model.tensor(prompt.ids), use_cache=True, logits_to_keep=1)
    synchronize(model.device)
    return time.perf_counter() - begun


def timed_round(request: Request, cells: list[tuple[str, float]], turn: int) -> list[dict]:
    """TTFT of transformers' full prefill and of every (method, ratio), one after the other; the order rotates with
    `turn`, so that none always follows the same one. Seconds of a method include the baseline's of this round."""
    model, length = request.model, len(request.prompt)
    order = [(BASELINE, 0.0), *cells]
    order = order[turn % len(order) :] + order[: turn % len(order)]
    records = {}
    for name, ratio in order:
        if name == BASELINE:
            record = {"ceiling": 1.0, "seconds": {"ttft": transformers_ttft(model, request.prompt)}}
        else:
            report = request.prefill(name, ratio).report
            record = {"ceiling": ceiling(model, length, report), "seconds": report.seconds}
        records[cell(name, ratio)] = record
    baseline = records[BASELINE]["seconds"]["ttft"]
    threads = torch.get_num_threads()
    return [
        {"cell": name, "threads": threads, **record, "seconds": {**record["seconds"], BASELINE: baseline}}
        for name, record in ((cell(*c), records[cell(*c)]) for c in [(BASELINE, 0.0), *cells])
    ]


def cell(method: str, ratio: float = 0.0) -> str:
    """Name of a method at a recompute ratio, in percent: `cacheblend-paper@15`; the ratio is left out where 0."""
    return f"{method}@{100 * ratio:g}" if ratio else method


def cells_at(methods: Iterable[str], ratio: float) -> list[tuple[str, float]]:
    """Each method with the ratio at which it is measured, 0 where it takes none."""
    return [(name, ratio if METHODS[name].takes_ratio else 0.0) for name in methods]


def answer_quality(
    model: Model, prompt: ChunkedPrompt, prefill: Prefill, example: RagExample, style: PromptFormat
) -> dict[str, float]:
    """The task's metrics of the greedy answer's first line; rank: whether the gold answer outranks all distractors."""
    scores = {}
    if "rank" in style.task.metrics:  # first, because generation goes on in the cache
        scores["rank"] = float(rank_correct(*_likelihoods(model, prefill, example, style)))
    stop = [FirstLine(model.tokenizer, len(prompt))]
    text = first_line(generate(model, prompt.ids, prefill, style.task.new_tokens, stopping_criteria=stop))
    return scores | text_scores(model, text, example, style.task)


def text_scores(model: Model, text: str, example: RagExample, task: Task) -> dict[str, float]:
    """The task's metrics of an answer's text, `rank` aside."""
    tokens = functools.partial(_token_ids, model)
    known = {
        "f1": token_f1,
        "f1_tokens": functools.partial(token_f1, split=tokens),
        "em": exact_match,
        "rouge_l": rouge_l,
    }
    return {name: metric(text, example.answers) for name, metric in known.items() if name in task.metrics}


def _likelihoods(model: Model, prefill: Prefill, example: RagExample, style: PromptFormat) -> tuple[float, list[float]]:
    """Mean log-probability a token of the likeliest gold answer, and of each distractor."""
    ids = {answer: answer_ids(answer, model.tokenizer, style) for answer in (*example.answers, *example.distractors)}
    scores = {answer: sequence_logprob(answer_logprobs(model, prefill, found), found) for answer, found in ids.items()}
    return max(scores[a] for a in example.answers), [scores[d] for d in example.distractors]


def _token_ids(model: Model, text: str) -> list[int]:
    return model.tokenizer(text, add_special_tokens=False)["input_ids"]
