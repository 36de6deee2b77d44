"""Where two prompts part, by token ids and not by how they look (S-65)."""

import os
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from replication.errors import ReplicationError
from replication.prompt import first_difference
from replication.runner import model_source, shown

_CONTEXT = 12


def compare(a: str, b: str, model: str) -> str:
    """A report on two prompts, each a text file or, where there is no such file, the text itself."""
    tokenizer = AutoTokenizer.from_pretrained(model_source(model))
    sides = [(label, *_read(text)) for label, text in (("A", a), ("B", b))]
    ids = [tuple(tokenizer(text)["input_ids"]) for _, _, text in sides]
    lines = [f"{label}: {len(i)} tokens, {source}" for (label, source, _), i in zip(sides, ids, strict=True)]
    index = first_difference(*ids)
    if index is None:
        same_text = sides[0][2] == sides[1][2]
        return "\n".join([*lines, "the token ids are the same" + ", though the texts differ" * (not same_text)])
    lines.append(f"first difference: token {index} (counting from 0); the {index} before it could come from a cache")
    return "\n".join([*lines, *parting(tokenizer, {"A": ids[0], "B": ids[1]}, index)])


def parting(tokenizer: PreTrainedTokenizerBase, prompts: dict[str, tuple[int, ...]], index: int) -> list[str]:
    """What two labelled prompts have at token `index`, where they part, and the text around it: two lines a prompt."""
    lines = []
    for label, ids in prompts.items():
        lines += [f"{label}: {_token(tokenizer, ids, index)}", f"   {_around(tokenizer, ids, index)}"]
    return lines


def _read(text: str) -> tuple[str, str]:
    """(where the text is from, the text)."""
    if os.path.isdir(text):
        raise ReplicationError(f"{shown(text)} is a directory: give a text file, or the text itself")
    if not os.path.isfile(text):
        return "from the command line (no such file)", text
    try:
        # as bytes, because reading as text would make \n of \r\n, which may be the very difference
        return shown(text), Path(text).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplicationError(f"cannot read {shown(text)} as UTF-8 text: {error}") from error


def _token(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], index: int) -> str:
    if index == len(ids):
        return "ends here"
    return f"id {ids[index]} {tokenizer.decode(ids[index : index + 1])!r}"


def _around(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], index: int) -> str:
    """The text around a token, with a mark where it starts."""
    before, after = ids[max(0, index - _CONTEXT) : index], ids[index : index + _CONTEXT]
    return f"{tokenizer.decode(before)!r} >>> {tokenizer.decode(after)!r}"
