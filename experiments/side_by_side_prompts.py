"""Each request of `side_by_side` in two forms: token ids for an own engine, and a Messages API body for a provider."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from experiments.prompt_scenarios import MARK, text
from replication.data.stream import Request
from replication.model import Model
from replication.prompt import ChunkedPrompt, build_prompt, chain, passage_text
from replication.task import QA


@dataclass(frozen=True)
class Arrival:
    """A request as it comes in. body: of the Messages API, without markers; at: seconds on the stream's clock."""

    request: Request
    prompt: ChunkedPrompt
    body: dict[str, Any]
    at: float


class Conversations:
    """Prompts in which a chat's turn extends the one before token by token (S-06): the history holds the ids that full
    prefill generated, the same for all systems, so that all get the same requests."""

    def __init__(self, model: Model, api_model: str, new_tokens: int, gap: float):
        self.model, self.gap = model, gap
        self._settings = {"model": api_model, "max_tokens": new_tokens, "temperature": 0}
        self._said: dict[str, tuple[Arrival, tuple[int, ...]]] = {}

    def arrival(self, request: Request) -> Arrival:
        """The next request. Errors as those of build_prompt."""
        at = len(self._said) * self.gap
        if request.follows is None:
            prompt = build_prompt(request.passages, request.question, self.model.tokenizer)
            system = [text(self._decode(prompt.prefix_ids))]
            messages = [_user(*(passage_text(p) for p in request.passages), request.question)]
        else:
            before, reply = self._said[request.follows]
            prompt, system = self._extended(before.prompt, reply, request.question), before.body["system"]
            answer = {"role": "assistant", "content": [text(self._decode(reply))]}
            messages = [*before.body["messages"], answer, _user(request.question)]
        return Arrival(request, prompt, {**self._settings, "system": system, "messages": messages}, at)

    def replied(self, arrival: Arrival, reply: tuple[int, ...]) -> None:
        self._said[arrival.request.id] = arrival, reply

    def _extended(self, before: ChunkedPrompt, reply: tuple[int, ...], question: str) -> ChunkedPrompt:
        *kept, last = before.segments
        asked = f"\n\n{QA.ask.format(question)}{QA.cue}"
        ids = self.model.tokenizer(asked, add_special_tokens=False)["input_ids"]
        return chain([*((s.kind, s.ids) for s in kept), ("question", (*last.ids, *reply, *ids))], before.bos)

    def _decode(self, ids: tuple[int, ...]) -> str:
        return self.model.tokenizer.decode(ids, skip_special_tokens=True)


def reply_ids(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The first line of what was generated."""
    ends = (i for i in range(len(ids)) if "\n" in tokenizer.decode(ids[: i + 1]))
    return ids[: next(ends, len(ids))]


def marked(body: dict[str, Any]) -> dict[str, Any]:
    """With markers where a careful user sets them: behind the instructions, behind the passages, and, by the automatic
    one, behind the last block, from which a chat's next turn reads."""
    first, *rest = body["messages"]
    *passages, last, question = first["content"]
    content = [*passages, {**last, **MARK}, question]
    system = [*body["system"][:-1], {**body["system"][-1], **MARK}]
    return {**body, **MARK, "system": system, "messages": [{**first, "content": content}, *rest]}


def _user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [text(letters) for letters in texts]}
