"""Requests for the tests of the provider's prompt cache: a letter is a token."""

from datetime import date

from replication.caches.provider.anthropic import Call, PromptCache

MODEL = "claude-sonnet-4-5"  # at least 1,024 tokens on all dates
NOW = date(2026, 11, 1)


def tokenize(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def cache(on: date = NOW, **options) -> PromptCache:
    return PromptCache(on, tokenize, **options)


def text(letters: str, ttl: str | None = None) -> dict:
    """A text block; ttl: of its marker, `bare` for a marker without one."""
    block = {"type": "text", "text": letters}
    if ttl:
        block["cache_control"] = {"type": "ephemeral"} if ttl == "bare" else {"type": "ephemeral", "ttl": ttl}
    return block


def user(*contents) -> dict:
    return {"role": "user", "content": list(contents)}


def body(system: list | None = None, messages: list | None = None, model: str = MODEL, **fields) -> dict:
    return {
        "model": model,
        "max_tokens": 8,
        "system": [text("s" * 2000, "bare")] if system is None else system,
        "messages": messages or [user(text("Hi"))],
        **fields,
    }


def counts(call: Call) -> tuple[int, int, int]:
    """(read, written, rest)."""
    return call.usage.read, call.usage.written, call.usage.rest


def turn(blocks: int, mark: str | None = "bare") -> list[dict]:
    """That many blocks of 10 tokens in one user message, the last one marked."""
    return [text(f"{i:010d}", mark if i == blocks - 1 else None) for i in range(blocks)]
