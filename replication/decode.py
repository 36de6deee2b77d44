"""Going on from a prefill: teacher-forced answers and greedy generation, and prefills of equal length as one batch."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from transformers import DynamicCache, PreTrainedTokenizerBase, StoppingCriteria

from replication.errors import ReplicationError
from replication.fuse import Prefill
from replication.model import Model


@torch.inference_mode()
def answer_logprobs(model: Model, prefill: Prefill, ids: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities [len(ids), vocabulary] in fp32 of each answer token given the prompt and the ones before.

    The cache is left as it was.
    """
    logits = prefill.logits[None]
    if len(ids) > 1:
        with prefill.attending():
            output = model.lm(input_ids=model.tensor(ids[:-1]), cache=prefill.cache, use_cache=True)
        logits = torch.cat([logits, output.logits[0]])
        prefill.cache.crop(1 - len(ids))
    return logits.float().log_softmax(-1)


def sequence_logprob(logprobs: torch.Tensor, ids: tuple[int, ...]) -> float:
    """Mean log-probability in nats per token of `ids` under `logprobs` [len(ids), vocabulary]."""
    return logprobs.gather(1, torch.tensor(ids, device=logprobs.device)[:, None]).mean().item()


@torch.inference_mode()
def generate(model: Model, prompt_ids: tuple[int, ...], prefill: Prefill, max_new_tokens: int = 16, **options) -> str:
    """Greedy continuation as text, by the model's own `generate` over the filled cache, which grows."""
    first = int(prefill.logits.argmax())
    if first == model.tokenizer.eos_token_id:
        return ""
    ids = model.tensor((*prompt_ids, first))
    options = {"max_new_tokens": max_new_tokens - 1, "do_sample": False, **options}
    with prefill.attending():
        output = model.lm.generate(ids, cache=prefill.cache, **options)
    return model.tokenizer.decode(output[0, len(prompt_ids) :], skip_special_tokens=True)


def batched(prefills: Sequence[Prefill]) -> tuple[DynamicCache, torch.Tensor]:
    """One cache, K and V [prompts, kv heads, tokens, head dim] a layer, and the logits [prompts, vocabulary] of prompts
    of equal length, from which the model goes on with all of them at once.

    Each prompt is prefilled by itself: which rows are recomputed differs between prompts. Errors: ReplicationError for
    prompts of different lengths, or a method that changes attention.
    """
    lengths = sorted({prefill.cache.get_seq_length() for prefill in prefills})
    if len(lengths) != 1:
        raise ReplicationError(f"a batch needs prompts of one length, not of {', '.join(map(str, lengths))} tokens")
    if any(prefill.attending is not nullcontext for prefill in prefills):
        raise ReplicationError("a method that changes attention goes on with one prompt at a time")
    layers = zip(*(prefill.cache.layers for prefill in prefills), strict=True)
    joined = [(torch.cat([x.keys for x in layer]), torch.cat([x.values for x in layer])) for layer in layers]
    return DynamicCache(joined), torch.stack([prefill.logits for prefill in prefills])


class FirstLine(StoppingCriteria):
    """Ends a generation with its first line that is not blank, for answers of one line; `start`: where it begins."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: int):
        self.tokenizer, self.start = tokenizer, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :], skip_special_tokens=True)
        return torch.tensor(["\n" in text.lstrip() for text in texts], device=input_ids.device)
