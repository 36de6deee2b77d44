"""From passages and a question to token ids whose chunk boundaries are exact.

Every segment is tokenised on its own and the ids are concatenated, so no token spans a boundary and a chunk has the
same ids wherever it stands. The question, separators and anything after the last chunk are never chunks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from replication.context import Context
from replication.data.example import Passage
from replication.errors import ReplicationError
from replication.task import QA, Task

_MARK = "\u241f"


@dataclass(frozen=True)
class PromptFormat:
    """template: `plain` (the task's worked examples) or `chat` (the model's own); separator: text between passages;
    bos: whether the tokenizer's BOS starts the prompt (None: as the tokenizer itself would); task: what is asked."""

    template: str = "plain"
    separator: str = ""
    bos: bool | None = None
    task: Task = QA


@dataclass(frozen=True)
class Segment:
    """kind: `prefix`, `passage`, `separator` or `question`; ids start at position `start` of the prompt."""

    kind: str
    ids: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True)
class ChunkedPrompt:
    """Token ids with the spans of their segments, in order and without gaps. bos: the BOS token, where the prompt
    starts with one."""

    segments: tuple[Segment, ...]
    bos: tuple[int, ...] = ()

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for segment in self.segments for i in segment.ids)

    def __len__(self) -> int:
        return self.segments[-1].stop

    @property
    def chunks(self) -> list[Segment]:
        """The segments that may come from a store: the prefix and the passages."""
        return [s for s in self.segments if s.kind in ("prefix", "passage")]

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        first = self.segments[0]
        return first.ids if first.kind == "prefix" else ()

    def reordered(self, order: list[int]) -> "ChunkedPrompt":
        """The same prompt with its passages in another order (`order`: old index at each new place)."""
        passages = [s for s in self.segments if s.kind == "passage"]
        if sorted(order) != list(range(len(passages))):
            raise ReplicationError(f"{order} is no order of {len(passages)} passages, which count from 0")
        places = iter(order)
        parts = [(s.kind, passages[next(places)].ids if s.kind == "passage" else s.ids) for s in self.segments]
        return chain(parts, self.bos)

    def recut(self, length: int) -> "ChunkedPrompt":
        """The same token ids with everything between prefix and question cut into chunks of `length` tokens (the last
        one takes the rest), as a splitter of fixed length would cut them."""
        if length < 1:
            raise ReplicationError(f"a chunk has at least 1 token, not {length}")
        middle = [i for s in self.segments if s.kind in ("passage", "separator") for i in s.ids]
        chunks = [("passage", middle[k : k + length]) for k in range(0, len(middle), length)]
        return chain([("prefix", self.prefix_ids), *chunks, ("question", self.segments[-1].ids)], self.bos)


def chain(parts: Iterable[tuple[str, Sequence[int]]], bos: tuple[int, ...] = ()) -> ChunkedPrompt:
    """A ChunkedPrompt from (kind, ids) pairs; empty parts are left out."""
    segments, start = [], 0
    for kind, ids in parts:
        if ids:
            segments.append(Segment(kind, tuple(ids), start))
            start += len(ids)
    return ChunkedPrompt(tuple(segments), bos)


def passage_text(passage: Passage, task: Task = QA) -> str:
    head = " ".join(part for part in (task.heading, passage.title) if part)
    return f"{head}\n{passage.text}\n\n"


def build_prompt(
    passages: tuple[Passage, ...],
    question: str,
    tokenizer: PreTrainedTokenizerBase,
    style: PromptFormat = PromptFormat(),
    context: Context | None = None,
) -> ChunkedPrompt:
    """The prompt of one RAG request. Errors: ReplicationError for no passages (use `without_passages` for the
    no-context control), an empty question, or a prompt that does not fit into `context`."""
    if not passages:
        raise ReplicationError("the passage list is empty: give at least one passage")
    return _assemble(passages, question, tokenizer, style, context)


def without_passages(question: str, tokenizer: PreTrainedTokenizerBase, style: PromptFormat) -> ChunkedPrompt:
    """The same prompt with no passage at all: what the model knows by itself."""
    return _assemble((), question, tokenizer, style, None)


def answer_ids(answer: str, tokenizer: PreTrainedTokenizerBase, style: PromptFormat) -> tuple[int, ...]:
    """Token ids of an answer as it continues the prompt, its end of line included."""
    text = f" {answer}\n" if style.template == "plain" else answer
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _assemble(passages, question, tokenizer, style, context) -> ChunkedPrompt:
    if not question.strip():
        raise ReplicationError("the question is empty: give the text of a question")

    def encode(text: str, plain: bool = False) -> list[int]:
        # in a user's text, the name of a special token is text
        return tokenizer(text, add_special_tokens=False, split_special_tokens=plain)["input_ids"]

    head, tail = _frame(tokenizer, style)
    bos = _bos(tokenizer, style)
    prefix = encode(head)
    parts = [("prefix", prefix if prefix[:1] == bos else bos + prefix)]
    for index, passage in enumerate(passages):
        if index:
            parts.append(("separator", encode(style.separator)))
        ids = encode(passage_text(passage, style.task), plain=True)
        if context:
            context.require(len(ids), "split the passage", f" of passage {index + 1} ('{passage.title}')")
        parts.append(("passage", ids))
    parts.append(("question", encode(style.task.ask.format(question.strip()), plain=True) + encode(tail)))
    prompt = chain(parts, tuple(bos))
    if context:
        context.require(len(prompt), "use fewer or shorter passages")
    return prompt


def _frame(tokenizer: PreTrainedTokenizerBase, style: PromptFormat) -> tuple[str, str]:
    """Text before the first passage, and text after the question."""
    task = style.task
    if style.template == "plain":
        shots = (
            f"{passage_text(Passage(title, text), task)}{task.ask.format(question)}{task.cue} {answer}\n\n"
            for title, text, question, answer in task.shots
        )
        return task.instruction + "".join(shots), task.cue
    if style.template != "chat":
        raise ReplicationError(f"unknown template '{style.template}'; known: plain, chat")
    if not tokenizer.chat_template:
        raise ReplicationError("this model has no chat template: use template=plain")
    message = [{"role": "user", "content": task.instruction + _MARK}]
    rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    head, tail = rendered.split(_MARK)
    return head, tail


def _bos(tokenizer: PreTrainedTokenizerBase, style: PromptFormat) -> list[int]:
    """BOS where it is asked for, or where the tokenizer adds one itself."""
    own = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    wanted = own if style.bos is None else style.bos
    if wanted and tokenizer.bos_token_id is None:
        raise ReplicationError("bos=true, but this tokenizer has no BOS token: use bos=false")
    return [tokenizer.bos_token_id] if wanted else []


def first_difference(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """Index of the first token id where two prompts part (S-65), or None when they are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
