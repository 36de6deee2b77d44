"""The part of `serving` on outputs: whether vLLM, with and without its prefix cache, says what our model says."""

import torch
from tqdm import tqdm

from experiments.common import Inputs
from experiments.serving_common import Servers, ServingConfig, ask_ours
from replication.caches.prefix import PrefixCache
from replication.caches.request import WithCache, decode
from replication.fuse import Prefill
from replication.model import Model
from replication.prompt import first_difference
from replication.records import RunFolder
from replication.vllm import Greedy


def answers(config: ServingConfig, folder: RunFolder, inputs: Inputs, servers: Servers) -> None:
    """Each example's prompt to vLLM without a cache, and twice to vLLM and to ours with one."""
    done = folder.done(("kind", "example"))
    pairs = [p for p in zip(inputs.examples, inputs.prompts, strict=True) if ("answers", p[0].id) not in done]
    for example, prompt in tqdm(pairs, "answers", unit="prompt"):
        salt = servers.salt(f"answers {example.id}")
        cache = PrefixCache(inputs.model, 1 + len(prompt) // config.block_size, config.block_size)
        cold, _ = ask_ours(cache, prompt.ids, salt)
        ours = [decoded(inputs.model, prompt.ids, cold, config.output)]
        warm, counts = ask_ours(cache, prompt.ids, salt)
        ours.append(decoded(inputs.model, prompt.ids, warm, config.output))
        plain = servers.uncached.complete(prompt.ids, salt, config.output, logprobs=True)
        theirs = [servers.cached.complete(prompt.ids, salt, config.output, logprobs=True) for _ in range(2)]
        ways = {
            "vllm": compared(ours[0], plain),
            "vllm hit": compared(theirs[0], theirs[1]),
            "our hit": compared(ours[0], ours[1]),
        }
        counts["cached"] = theirs[1].cached
        folder.append({"kind": "answers", "example": example.id, "ways": ways, "hit": counts})


@torch.inference_mode()
def decoded(model: Model, ids: tuple[int, ...], prefill: Prefill, count: int) -> Greedy:
    """`count` greedy tokens of our model behind a prefill, never ending early."""
    first = int(prefill.logits.argmax())
    rest = decode(WithCache(model, prefill.cache, ids), (first,), count - 1)
    logits = torch.cat([prefill.logits[None], rest.logits]).float()
    best = logits.topk(2).values
    logprobs = logits.log_softmax(-1).amax(-1)
    return Greedy((first, *rest.ids), tuple(logprobs.tolist()), tuple((best[:, 0] - best[:, 1]).tolist()))


def compared(reference: Greedy, other: Greedy) -> dict:
    """parted: the first token that differs, or None. gap: the lesser of the two gaps there, how near to the same choice
    one was. difference: the largest of a log-probability of the tokens before, in nats; None where there is none."""
    parted = first_difference(reference.ids, other.ids)
    pairs = list(zip(reference.logprobs, other.logprobs, strict=True))[:parted]
    return {
        "parted": parted,
        "gap": None if parted is None else min(reference.gaps[parted], other.gaps[parted]),
        "difference": max((abs(a - b) for a, b in pairs), default=None),
    }
