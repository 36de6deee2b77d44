"""The article's ways to lose a prompt cache (S-33, S-60 to S-64): the same traffic before and after the repair."""

from collections.abc import Callable
from dataclasses import dataclass

from replication.data import RagExample
from replication.prompt import passage_text

MARK = {"cache_control": {"type": "ephemeral"}}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@dataclass(frozen=True)
class Material:
    """What an example gives: documents, and for each call a question, an answer and a tool's output."""

    docs: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    outputs: tuple[str, ...]
    model: str
    cheaper: str

    @classmethod
    def of(cls, example: RagExample, calls: int, model: str, cheaper: str) -> "Material":
        asked = example.passages[:calls]
        return cls(
            docs="".join(passage_text(p) for p in example.passages),
            questions=(example.question, *(f"What is known of the {p.title}?" for p in asked[1:])),
            answers=tuple(p.text.partition(". ")[0] + "." for p in asked),
            outputs=tuple(p.text for p in asked),
            model=model,
            cheaper=cheaper,
        )


@dataclass(frozen=True)
class Pitfall:
    """row: of the source; before, after: the calls without and with the repair; at_once: all before come together."""

    row: str
    before: Callable[[Material], list[dict]]
    after: Callable[[Material], list[dict]]
    at_once: bool = False


def text(letters: str, mark: bool = False) -> dict:
    return {"type": "text", "text": letters, **(MARK if mark else {})}


def body(m: Material, system: list, messages: list) -> dict:
    return {"model": m.model, "max_tokens": 64, "system": system, "messages": messages}


def asked(m: Material, system: list | None = None) -> list[dict]:
    """Independent questions about the documents, which are marked."""
    system = [text(m.docs, mark=True)] if system is None else system
    return [body(m, system, [_user(text(q))]) for q in m.questions]


def chat(m: Material) -> list[dict]:
    """One conversation that begins with the documents; they are marked, and so is the last message of every call."""
    history, calls = [], []
    for i, (question, answer) in enumerate(zip(m.questions, m.answers, strict=True)):
        docs = [] if i else [text(m.docs, mark=True)]
        calls.append(body(m, [], [*history, _user(*docs, text(question, mark=True))]))
        history += [_user(*docs, text(question)), _assistant(text(answer))]
    return calls


def alternating(calls: list[dict], other: dict) -> list[dict]:
    """Every second call with other settings."""
    return [{**call, **other} if i % 2 else call for i, call in enumerate(calls)]


def _user(*contents: dict) -> dict:
    return {"role": "user", "content": list(contents)}


def _assistant(*contents: dict) -> dict:
    return {"role": "assistant", "content": list(contents)}


def _clock(i: int) -> str:
    return f"The time is 12:{i:02d}.\n"


def _moving_marker(m: Material) -> list[dict]:
    return [body(m, [text(m.docs)], [_user(text(q, mark=True))]) for q in m.questions]


def _clock_in_front(m: Material) -> list[dict]:
    return [body(m, [text(_clock(i) + m.docs, mark=True)], [_user(text(q))]) for i, q in enumerate(m.questions)]


def _clock_last(m: Material) -> list[dict]:
    return [body(m, [text(m.docs, mark=True)], [_user(text(_clock(i) + q))]) for i, q in enumerate(m.questions)]


def _tools(m: Material, turn: int) -> list[dict]:
    """One tool a document, beginning with another one each turn."""
    properties = {"name": {"type": "string", "description": "whose entry to look up"}}
    tools = [
        {"name": f"archive_{i}", "description": output, "input_schema": {"type": "object", "properties": properties}}
        for i, output in enumerate(m.outputs)
    ]
    return tools[turn % len(tools) :] + tools[: turn % len(tools)]


def _tools_in_any_order(m: Material) -> list[dict]:
    return [{**call, "tools": _tools(m, i)} for i, call in enumerate(asked(m))]


def _tools_in_one_order(m: Material) -> list[dict]:
    return [{**call, "tools": _tools(m, 0)} for call in asked(m)]


def _cited(m: Material, turn: int, enabled: bool) -> dict:
    """The documents as a document block, with citations or not."""
    source = {"type": "text", "media_type": "text/plain", "data": m.docs}
    document = {"type": "document", "source": source, "citations": {"enabled": enabled}, **MARK}
    return body(m, [], [_user(document, text(m.questions[turn]))])


def agent(m: Material, edit: Callable[[list[dict]], list[dict]] = lambda history: history) -> list[dict]:
    """A conversation whose every turn calls a tool; `edit` changes the history that the last call sends."""
    system, history, calls = [text(m.docs, mark=True)], [], []
    for i, (question, answer, output) in enumerate(zip(m.questions, m.answers, m.outputs, strict=True)):
        last = i == len(m.questions) - 1
        calls.append(body(m, system, [*(edit(history) if last else history), _user(text(question, mark=True))]))
        use = {"type": "tool_use", "id": f"t{i}", "name": "archive", "input": {"question": question}}
        result = {"type": "tool_result", "tool_use_id": f"t{i}", "content": output}
        history += [_user(text(question)), _assistant(use), _user(result), _assistant(text(answer))]
    return calls


def _summarised(history: list[dict]) -> list[dict]:
    said = " ".join(m["content"][0]["text"] for m in history if m["content"][0]["type"] == "text")
    return [_user(text(f"So far: {said}")), _assistant(text("Go on."))]


def _truncated(which: int) -> Callable[[list[dict]], list[dict]]:
    """Cuts the output of one tool call to 40 characters where it stands."""

    def edit(history: list[dict]) -> list[dict]:
        places = [i for i, message in enumerate(history) if message["content"][0]["type"] == "tool_result"]
        block = history[places[which]]["content"][0]
        cut = _user({**block, "content": block["content"][:40]})
        return [cut if i == places[which] else message for i, message in enumerate(history)]

    return edit


def _routed(m: Material) -> list[dict]:
    """The last call goes to the cheaper model."""
    return [*chat(m)[:-1], {**chat(m)[-1], "model": m.cheaper}]


PITFALLS = {
    "marker on the question": Pitfall("S-33", _moving_marker, asked),
    "clock in front": Pitfall("S-60", _clock_in_front, _clock_last),
    "tools in any order": Pitfall("S-61", _tools_in_any_order, _tools_in_one_order),
    "web search on and off": Pitfall("S-62", lambda m: alternating(asked(m), {"tools": [WEB_SEARCH]}), asked),
    "citations on and off": Pitfall(
        "S-62",
        lambda m: [_cited(m, i, enabled=bool(i % 2)) for i in range(len(m.questions))],
        lambda m: [_cited(m, i, enabled=False) for i in range(len(m.questions))],
    ),
    "thinking on and off": Pitfall("S-62", lambda m: alternating(chat(m), {"thinking": THINKING}), chat),
    "tool choice changing": Pitfall("S-62", lambda m: alternating(chat(m), {"tool_choice": {"type": "any"}}), chat),
    "history summarised": Pitfall("S-63", lambda m: agent(m, _summarised), agent),
    "oldest output truncated": Pitfall("S-63", lambda m: agent(m, _truncated(0)), agent),
    "newest output truncated": Pitfall("S-63", lambda m: agent(m, _truncated(-1)), agent),
    "routed to a cheaper model": Pitfall("S-64", _routed, chat),
    "first calls at once": Pitfall("user report 47", asked, asked, at_once=True),
}
