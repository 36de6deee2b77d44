"""Bare questions put to a language model: its greedy answers, many at a time, and how likely it finds a given answer.

>>> from replication.model import load_model
>>> model = QuestionAnswering(load_model("smollm2-135m"), longest=8)
>>> model.answers(["What is the capital of France?", "What is the capital of Japan?"])
['The capital of France is Paris.', 'The capital of Japan is Tokyo.']
>>> served = "The capital of France is Paris."
>>> model.nll("What is the capital of France?", served) < model.nll("What is the capital of Japan?", served)
True
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from replication.caches.chat import Message, render
from replication.decode import sequence_logprob
from replication.errors import ReplicationError
from replication.model import Model


@dataclass(frozen=True)
class QuestionAnswering:
    """Asks by the model's chat template, or as `Question: .. Answer:` where it has none. longest: answer in tokens."""

    model: Model
    longest: int = 64

    def prompt(self, question: str) -> tuple[int, ...]:
        """Token ids up to where the answer begins."""
        tokenizer = self.model.tokenizer
        if tokenizer.chat_template:
            return render(tokenizer, [Message("user", question)])
        return tuple(tokenizer(f"Question: {question}\nAnswer:")["input_ids"])

    @torch.inference_mode()
    def answers(self, questions: Sequence[str], shortest: int = 1) -> list[str]:
        """The greedy answer to each question, all of them decoded together; shortest: in tokens, before it may end."""
        prompts = [self.prompt(question) for question in questions]
        width = max(map(len, prompts))
        # on the left, so that all answers begin at one place
        padding = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor([(0,) * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)])
        mask = torch.arange(width) >= torch.tensor(padding)[:, None]
        lm = self.model.lm
        output = lm.generate(
            ids.to(lm.device),
            attention_mask=mask.long().to(lm.device),
            max_new_tokens=self.longest,
            min_new_tokens=shortest,
            do_sample=False,
        )
        return [self._text(row) for row in output[:, width:].tolist()]

    @torch.inference_mode()
    def nll(self, question: str, answer: str) -> float:
        """Negative log-likelihood of the answer's text behind the question, in nats per token."""
        prompt, ids = self.prompt(question), self.model.tokenizer(answer, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ReplicationError("an empty answer has no likelihood per token")
        output = self.model.lm(input_ids=self.model.tensor((*prompt, *ids)), logits_to_keep=len(ids) + 1)
        return -sequence_logprob(output.logits[0, :-1].float().log_softmax(-1), tuple(ids))

    def _text(self, ids: list[int]) -> str:
        ends = self.model.lm.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        length = next((at for at, token in enumerate(ids) if token in ends), len(ids))
        return self.model.tokenizer.decode(ids[:length])
