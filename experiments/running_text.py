"""Prompts of an exact length, cut from a data set's running text: what the times depend on and nothing else."""

from replication.data import Loaded
from replication.errors import ReplicationError
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain, passage_text


def running_prompt(
    model: Model, loaded: Loaded, length: int, chunk: int, prefix: int, fresh: int, number: int = 0
) -> ChunkedPrompt:
    """A prompt of `length` tokens: a shared prefix, chunks of equal length (the last may be shorter), and a question of
    `fresh` tokens. number: which stretch of the text; all but the prefix differ between numbers.

    Errors: ReplicationError when the model's context or the text is too short.
    """
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    model.context.require(length, "set lengths")
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    own = length - prefix
    needed = prefix + (number + 1) * own
    if len(ids) < needed:
        raise ReplicationError(f"{len(loaded.examples)} examples give {len(ids)} tokens, {needed} are needed: raise n")
    body = ids[needed - own : needed]
    spans = [body[at : min(at + chunk, own - fresh)] for at in range(0, own - fresh, chunk)]
    return chain([("prefix", ids[:prefix]), *[("passage", span) for span in spans], ("question", body[own - fresh :])])
