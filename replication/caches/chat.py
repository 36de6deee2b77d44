"""A chat whose every turn extends the last one token by token, over one kept cache (S-05, S-06).

Messages are tokenised one by one between the pieces of the model's chat template, and a reply keeps the ids that were
generated: decoded and tokenised again, it can come out as other tokens, and reuse would end there.

>>> from replication.caches.chat import ChatSession
>>> from replication.model import load_model
>>> chat = ChatSession(load_model("smollm2-135m"), max_new_tokens=4)
>>> turns = [chat.say(text) for text in ("Name a colour.", "Another one.", "And a third.")]
>>> turns[0].reuse.prompt < turns[1].reuse.prompt < turns[2].reuse.prompt
True
>>> [turn.reuse.prefilled for turn in turns]
[34, 15, 15]
>>> chat.edit(0, "Name a fruit.")
>>> chat.say("One more.").reuse.parted  # the token at which the history was changed
26
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import Cache, DynamicCache, PreTrainedTokenizerBase

from replication.caches.kept import KeptCache, Reuse
from replication.caches.request import Decoded
from replication.errors import ReplicationError
from replication.model import Model

_MARK = "\u241f"


@dataclass(frozen=True)
class Message:
    """role: as the template knows it, `system`, `user` or `assistant`. ids: the tokens of a generated reply."""

    role: str
    text: str
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Turn:
    """reply: its text; decoded: its tokens and times; reuse: what came from the cache."""

    reply: str
    decoded: Decoded
    reuse: Reuse


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[int, ...]:
    """Token ids of the chat with the prompt for the next reply. In a message the name of a special token is text."""
    if not tokenizer.chat_template:
        raise ReplicationError("this model has no chat template: take an instruction-tuned one")
    marked = [{"role": m.role, "content": f"{_MARK}{i}{_MARK}"} for i, m in enumerate(messages)]
    text = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    ids: list[int] = []
    for index, piece in enumerate(re.split(f"{_MARK}(\\d+){_MARK}", text)):
        if index % 2 == 0:
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        else:
            ids += _content(tokenizer, messages[int(piece)])
    return tuple(ids)


def _content(tokenizer: PreTrainedTokenizerBase, message: Message) -> Sequence[int]:
    if message.ids is not None:
        return message.ids
    return tokenizer(message.text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


class ChatSession:
    """A conversation with greedy replies. messages: what has been said; edit it by `edit`."""

    def __init__(
        self, model: Model, system: str = "", max_new_tokens: int = 64, make_cache: Callable[[], Cache] = DynamicCache
    ):
        self.model, self.max_new_tokens = model, max_new_tokens
        self.messages = [Message("system", system)] if system else []
        self.kept = KeptCache(model, make_cache)

    def say(self, text: str) -> Turn:
        """Add the user's message and the reply to it; an error leaves the conversation as it was."""
        if not text.strip():
            raise ReplicationError("the message is empty: give some text")
        tokenizer, asked = self.model.tokenizer, [*self.messages, Message("user", text)]
        end = tokenizer.eos_token_id
        decoded, reuse = self.kept.answer(render(tokenizer, asked), self.max_new_tokens, end)
        ids = decoded.ids[:-1] if decoded.ids[-1] == end else decoded.ids  # the template writes the end itself
        reply = tokenizer.decode(ids)
        self.messages = [*asked, Message("assistant", reply, ids)]
        return Turn(reply, decoded, reuse)

    def edit(self, index: int, text: str) -> None:
        """Put another text in the place of message `index`; the next turn reuses what stands before it."""
        if not 0 <= index < len(self.messages):
            raise ReplicationError(f"there is no message {index}: the chat has {len(self.messages)}, counted from 0")
        self.messages[index] = Message(self.messages[index].role, text)
