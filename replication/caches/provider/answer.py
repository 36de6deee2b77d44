"""Greedy answers of a local model to Messages API requests, token by token.

>>> from replication.model import load_model
>>> say = Answerer(load_model("smollm2-135m"), longest=8)
>>> body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 512}
>>> "".join(say(body))
'The capital of France is Paris.'
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import DynamicCache

from replication.caches.provider.request import ApiError, conversation
from replication.errors import ReplicationError
from replication.model import Model


class Answerer:
    """Calling it with a request body gives the answer's text in pieces, one a token, at most `longest` of them.

    The whole prompt is prefilled each time: what the provider's cache saves is counted, not speeded up.
    Errors: ReplicationError for a model without a chat template, ApiError for a prompt that exceeds its context.
    """

    def __init__(self, model: Model, longest: int = 16):
        if not model.tokenizer.chat_template:
            raise ReplicationError(f"model '{model.name}' has no chat template: choose an instruction-tuned one")
        self.model, self.longest = model, longest
        self._one_at_a_time = threading.Lock()

    def __call__(self, body: Mapping[str, Any]) -> Iterator[str]:
        tokenizer, allowed = self.model.tokenizer, self.limit(body)
        with self._one_at_a_time:
            ids = tokenizer.apply_chat_template(conversation(body), add_generation_prompt=True, return_dict=False)
        room = self.model.context_length - allowed
        if len(ids) > room:
            raise ApiError(f"prompt is too long: {len(ids)} tokens > {room} maximum")
        answer, said = [], ""
        for token in self._greedy(ids, allowed):
            answer.append(token)
            text = tokenizer.decode(answer)
            # a character of several tokens is said with the last of them
            piece = "" if text.endswith("\ufffd") else text[len(said) :]
            said += piece
            yield piece

    def limit(self, body: Mapping[str, Any]) -> int:
        """Tokens at which the answer is cut off."""
        return min(body["max_tokens"], self.longest)

    def _greedy(self, ids: list[int], count: int) -> Iterator[int]:
        lm, cache, given = self.model.lm, DynamicCache(), ids
        for _ in range(count):
            with self._one_at_a_time, torch.inference_mode():
                logits = lm(input_ids=self.model.tensor(given), cache=cache, use_cache=True, logits_to_keep=1).logits
            token = int(logits[0, -1].argmax())
            if token == self.model.tokenizer.eos_token_id:
                return
            yield token
            given = [token]
