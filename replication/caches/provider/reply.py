"""Replies in the form of the Messages API: a message, its server-sent events, an error.

>>> error("a maximum of 4 blocks", "invalid_request_error")["error"]
{'type': 'invalid_request_error', 'message': 'a maximum of 4 blocks'}
"""

import secrets
from collections.abc import Iterator

from replication.caches.provider.usage import Usage


def message(model: str, text: str, stop_reason: str | None, usage: Usage, output_tokens: int) -> dict:
    """A whole message; text: empty for the beginning of a streamed one."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage.counters(output_tokens),
    }


def events(model: str, pieces: Iterator[str], limit: int, usage: Usage) -> Iterator[dict]:
    """The events of a streamed message, one delta a token; limit: tokens at which `pieces` was cut off."""
    yield {"type": "message_start", "message": message(model, "", None, usage, 0)}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    count = 0
    for piece in pieces:
        count += 1
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": stop_reason(count, limit), "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": count}}
    yield {"type": "message_stop"}


def stop_reason(count: int, limit: int) -> str:
    return "max_tokens" if count == limit else "end_turn"


def error(text: str, kind: str) -> dict:
    return {"type": "error", "error": {"type": kind, "message": text}}
