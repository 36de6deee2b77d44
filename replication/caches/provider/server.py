"""A local server that speaks Anthropic's Messages API: a simulated prompt cache counts, a local model answers.

>>> import anthropic
>>> from datetime import date
>>> from replication.caches.provider.anthropic import PromptCache
>>> from replication.caches.provider.answer import Answerer
>>> from replication.caches.provider.request import tokenizer_of
>>> from replication.model import load_model
>>> model = load_model("smollm2-135m")
>>> cache = PromptCache(date(2026, 11, 1), tokenizer_of(model.tokenizer))
>>> with PromptServer(cache, Answerer(model, longest=1)) as server:
...     client = anthropic.Anthropic(base_url=server.url, api_key="any")
...     prompt = [{"role": "user", "content": "Hi"}]
...     client.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=prompt).stop_reason
'max_tokens'
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from replication.caches.provider import reply
from replication.caches.provider.answer import Answerer
from replication.caches.provider.anthropic import Call, PromptCache
from replication.caches.provider.request import ApiError
from replication.errors import ReplicationError

_LOG = logging.getLogger(__name__)
_LONGEST_BODY = 32 * 2**20


class PromptServer:
    """Serves http://127.0.0.1:`port` while its `with` block runs; port 0 takes a free one. clock: seconds.

    An API key is neither looked at nor kept. Which workspace it belongs to is not known here, so the header
    `x-workspace` says it. Errors: ReplicationError when the port is taken.
    """

    def __init__(
        self, cache: PromptCache, answerer: Answerer, port: int = 0, clock: Callable[[], float] = time.monotonic
    ):
        self.cache, self.answerer, self.clock = cache, answerer, clock
        self._turn = threading.Lock()
        try:
            self._http = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"prompts": self}))
        except OSError as error:
            raise ReplicationError(f"cannot serve on port {port}: {error.strerror}; give another --port") from error
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> "PromptServer":
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def ask(self, body: Any, workspace: str) -> tuple[Call, Iterator[str]]:
        """The call, whose response has begun, and the pieces of its answer."""
        _check(body)
        try:
            with self._turn:
                call = self.cache.open(body, self.clock(), workspace)
        except ApiError:
            raise
        except ReplicationError as error:  # the rules do not know the model
            raise ApiError(str(error), 404, "not_found_error") from error
        pieces = self.answerer(body)
        first = list(itertools.islice(pieces, 1))
        with self._turn:
            self.cache.response_begins(call, self.clock())
        return call, itertools.chain(first, pieces)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    prompts: PromptServer

    def do_POST(self) -> None:
        with suppress(ConnectionError):  # the client has gone
            try:
                self._answer()
            except ApiError as error:
                self._send(error.status, reply.error(str(error), error.kind))
            except ConnectionError:
                raise
            except Exception:
                _LOG.exception("a request failed")
                self._send(500, reply.error("internal server error", "api_error"))

    def do_GET(self) -> None:
        self._send(404, reply.error(f"no such page: {self.path}", "not_found_error"))

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def _answer(self) -> None:
        body = self._body()
        if self.path.partition("?")[0] != "/v1/messages":
            raise ApiError(f"no such page: {self.path}", 404, "not_found_error")
        call, pieces = self.prompts.ask(body, self.headers.get("x-workspace", "default"))
        limit = self.prompts.answerer.limit(body)
        if body.get("stream"):
            return self._stream(reply.events(body["model"], pieces, limit, call.usage))
        tokens = list(pieces)
        text, reason = "".join(tokens), reply.stop_reason(len(tokens), limit)
        return self._send(200, reply.message(body["model"], text, reason, call.usage, len(tokens)))

    def _body(self) -> Any:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _LONGEST_BODY:
            self.close_connection = True  # the body is left unread
            raise ApiError("the body needs a content-length of at most 32 MB", 413, "request_too_large")
        try:
            return json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise ApiError(f"the body is no JSON: {error}") from error

    def _send(self, status: int, content: dict) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[dict]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")  # the end of the stream
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()


def _check(body: Any) -> None:
    if not isinstance(body, dict):
        raise ApiError("the body must be a JSON object")
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ApiError("max_tokens: a whole number of at least 1 is required")
