"""A Messages API request as its prompt cache sees it: blocks in the order tools, system, messages, with their markers.

>>> from datetime import date
>>> from replication.caches.provider.rules import load_rules
>>> body = {"model": "claude-sonnet-4-6", "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}
>>> rules = load_rules("anthropic", body["model"], date(2026, 11, 1))
>>> rendered = render(body, lambda text: tuple(text.encode()), rules)
>>> [(block.level, len(block.ids), block.ttl) for block in rendered.blocks]
[('system', 9, None), ('messages', 8, None)]
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from replication.caches.provider.rules import Rules
from replication.errors import ReplicationError

LEVELS = ("tools", "system", "messages")
Tokenize = Callable[[str], tuple[int, ...]]
_THINKING = ("thinking", "redacted_thinking")


class ApiError(ReplicationError):
    """A request that the API refuses. status: of HTTP; kind: as the API's error body names it."""

    def __init__(self, message: str, status: int = 400, kind: str = "invalid_request_error"):
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Block:
    """A tool, or a content block. ids: its token ids; ttl: of the marker (`cache_control`) on it, if there is one."""

    level: str
    ids: tuple[int, ...]
    ttl: str | None = None
    markable: bool = True


@dataclass(frozen=True)
class Rendered:
    """settings: level -> {name: value} of what is rendered at the head of that level without tokens of its own."""

    blocks: tuple[Block, ...]
    settings: Mapping[str, Mapping[str, Any]]

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for block in self.blocks for i in block.ids)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Tokens from the start of the prompt to the end of each block."""
        ends, total = [], 0
        for block in self.blocks:
            total += len(block.ids)
            ends.append(total)
        return tuple(ends)

    def keys(self, scope: str) -> list[bytes]:
        """A key for the prefix that ends with each block: equal only where all before it, and `scope`, are equal."""
        keys, key = [], hashlib.sha256(scope.encode()).digest()
        for level in LEVELS:
            key = _chained(key, json.dumps([level, self.settings[level]], sort_keys=True))
            for block in self.blocks:
                if block.level == level:
                    key = _chained(key, repr(block.ids))
                    keys.append(key)
        return keys


def _chained(parent: bytes, text: str) -> bytes:
    return hashlib.sha256(parent + text.encode()).digest()


def tokenizer_of(tokenizer: PreTrainedTokenizerBase) -> Tokenize:
    """Text to token ids; in a user's text, the name of a special token is text."""
    # its own, because a call's settings stay in a tokenizer, which another thread may be using
    own = copy.deepcopy(tokenizer)

    @lru_cache(maxsize=4096)
    def tokenize(text: str) -> tuple[int, ...]:
        return tuple(own(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    return tokenize


def render(body: Mapping[str, Any], tokenize: Tokenize, rules: Rules) -> Rendered:
    """The blocks of a request body; every block is tokenised alone, so that its ids are the same wherever it stands.

    What a provider adds to a prompt is unknown and not counted, nor are an image's tokens. A tool is rendered with its
    keys in the order given: another order is another prompt (S-61). Errors: ApiError where the API gives 400.
    """
    messages, stripped = _without_old_thinking(_messages(body))
    blocks = [
        *(_block(_level_of_tool(t, rules), t, _json(t), tokenize, rules, f"tools.{i}") for i, t in _tools(body)),
        *(_content_block("system", b, "", tokenize, rules, f"system.{i}") for i, b in enumerate(_system(body))),
    ]
    blocks.sort(key=lambda block: LEVELS.index(block.level))  # stable
    for i, message in enumerate(messages):
        for j, content in enumerate(message["content"]):
            head = "" if j else f"\n{message['role']}:"
            blocks.append(_content_block("messages", content, head, tokenize, rules, f"messages.{i}.content.{j}"))
    blocks = _with_automatic_marker(blocks, body, rules)
    _check_markers(blocks, rules)
    return Rendered(tuple(blocks), _settings(body, messages, stripped, rules))


def conversation(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """The same request as the messages of a chat template; tools and other blocks than text are shown as JSON."""
    head = [_json(tool) for _, tool in _tools(body)] + [_shown(content) for content in _system(body)]
    system = [{"role": "system", "content": "\n".join(head)}] if head else []
    turns = _without_old_thinking(_messages(body))[0]
    return system + [{"role": m["role"], "content": "\n".join(map(_shown, m["content"]))} for m in turns]


def _settings(body: Mapping, messages: list[dict], stripped: int, rules: Rules) -> dict[str, dict]:
    contents = [content for message in messages for content in message["content"]]
    contents += [inner for content in contents for inner in _inside(content)]
    asked = [content["citations"] for content in contents if isinstance(content.get("citations"), dict)]
    values = {
        "citations": any(citations.get("enabled") for citations in asked),
        "speed": body.get("speed"),
        "tool_choice": body.get("tool_choice"),
        "images": sum(content.get("type") == "image" for content in contents),
        "thinking": body.get("thinking"),
        "non_tool_results": stripped,
    }
    return {level: {k: v for k, v in values.items() if rules["voids"][k] == level} for level in LEVELS}


def _inside(content: dict) -> list[dict]:
    """The blocks of a tool's result."""
    inner = content.get("content")
    return [block for block in inner if isinstance(block, dict)] if isinstance(inner, list) else []


def _without_old_thinking(messages: list[dict]) -> tuple[list[dict], int]:
    """Without the thinking before the last user turn that is more than tool results, and how many blocks that was."""

    def asks(message: dict) -> bool:
        return message["role"] == "user" and any(c["type"] != "tool_result" for c in message["content"])

    last = max((i for i, message in enumerate(messages) if asks(message)), default=0)
    kept = [
        {**m, "content": [c for c in m["content"] if i > last or c["type"] not in _THINKING]}
        for i, m in enumerate(messages)
    ]
    return kept, sum(len(m["content"]) for m in messages) - sum(len(m["content"]) for m in kept)


def _level_of_tool(tool: dict, rules: Rules) -> str:
    web_search = str(tool.get("type", "")).startswith("web_search")
    return rules["voids"]["web_search" if web_search else "tool_definitions"]


def _content_block(level: str, content: dict, head: str, tokenize: Tokenize, rules: Rules, where: str) -> Block:
    block = _block(level, content, head + _shown(content), tokenize, rules, where)
    return replace(block, markable=_unmarkable(content) is None)


def _block(level: str, content: dict, text: str, tokenize: Tokenize, rules: Rules, where: str) -> Block:
    return Block(level, tokenize(text), _ttl(content, rules, where))


def _ttl(content: Mapping, rules: Rules, where: str) -> str | None:
    marker = content.get("cache_control")
    if marker is None:
        return None
    if not isinstance(marker, dict) or marker.get("type") != "ephemeral":
        raise ApiError(f"{where}.cache_control: must be an object of type 'ephemeral'")
    ttl = marker.get("ttl", rules["default_ttl"])
    if ttl not in rules["ttl"]:
        raise ApiError(f"{where}.cache_control.ttl: must be one of {', '.join(rules['ttl'])}, not {ttl!r}")
    return ttl


def _with_automatic_marker(blocks: list[Block], body: Mapping, rules: Rules) -> list[Block]:
    """A top-level `cache_control` marks the last block that can be marked."""
    ttl = _ttl(body, rules, "body")
    last = max((i for i, block in enumerate(blocks) if block.markable), default=None)
    if ttl is None or last is None or blocks[last].ttl is not None:
        return blocks
    return [*blocks[:last], replace(blocks[last], ttl=ttl), *blocks[last + 1 :]]


def _check_markers(blocks: list[Block], rules: Rules) -> None:
    ttls = [block.ttl for block in blocks if block.ttl is not None]
    if len(ttls) > rules["max_markers"]:
        raise ApiError(
            f"a maximum of {rules['max_markers']} blocks with cache_control may be provided: found {len(ttls)}"
        )
    seconds = [rules["ttl"][ttl] for ttl in ttls]
    if seconds != sorted(seconds, reverse=True):
        raise ApiError("a cache_control block with ttl '1h' must not come after one with ttl '5m'")


def _tools(body: Mapping) -> list[tuple[int, dict]]:
    return list(enumerate(_objects(body.get("tools") or [], "tools")))


def _system(body: Mapping) -> list[dict]:
    return _contents(body.get("system") or [], "system")


def _messages(body: Mapping) -> list[dict]:
    messages = _objects(body.get("messages"), "messages")
    if not messages:
        raise ApiError("messages: at least one message is required")
    for i, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            raise ApiError(f"messages.{i}.role: must be 'user' or 'assistant'")
    return [{**m, "content": _contents(m.get("content"), f"messages.{i}.content")} for i, m in enumerate(messages)]


def _contents(value: Any, where: str) -> list[dict]:
    """Content as blocks: a string is one text block."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    contents = _objects(value, where)
    for i, content in enumerate(contents):
        if not isinstance(content.get("type"), str):
            raise ApiError(f"{where}.{i}.type: field required")
        if content["type"] == "text" and not isinstance(content.get("text"), str):
            raise ApiError(f"{where}.{i}.text: field required")
        if _unmarkable(content) and content.get("cache_control") is not None:
            raise ApiError(f"{where}.{i}.cache_control: {_unmarkable(content)} cannot be marked")
    return contents


def _unmarkable(content: dict) -> str | None:
    if content["type"] in _THINKING:
        return "thinking blocks"
    return "empty text blocks" if content["type"] == "text" and not content["text"] else None


def _objects(value: Any, where: str) -> list[dict]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ApiError(f"{where}: must be a list of objects")
    return value


def _shown(content: dict) -> str:
    return content["text"] if content["type"] == "text" else _json(content)


def _json(content: dict) -> str:
    """A block other than text as JSON, keys in the order given, without its marker, and with digests for file data."""
    return json.dumps({k: _digested(v) for k, v in content.items() if k != "cache_control"}, ensure_ascii=False)


def _digested(value: Any) -> Any:
    if isinstance(value, list):
        return [_digested(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "base64" and isinstance(value.get("data"), str):
        return {**value, "data": hashlib.sha256(value["data"].encode()).hexdigest()}
    return {key: _digested(item) for key, item in value.items()}
