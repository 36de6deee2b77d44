"""A stand-in for a vLLM server: its completions API and metrics over our own model and prefix cache, with its rule
that a prompt is never found whole."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from experiments.serving_answers import decoded
from experiments.serving_summary import by_vllms_rule
from replication.caches.prefix import PrefixCache
from replication.model import Model


class StandIn:
    """It serves in fp32. `off_by`: what it adds to every count of cached tokens, to be caught at it."""

    def __init__(self, model: Model, caches: bool = True, block_size: int = 32, off_by: int = 0, longest: int = 4096):
        self.model, self.caches, self.block_size, self.off_by = model, caches, block_size, off_by
        self.name, self.longest = f"{model.name}-float32", longest
        self.cache = PrefixCache(model, 512, block_size)
        self.hits = self.calls = 0

    def complete(self, body: dict) -> Iterator[dict]:
        ids, salt = tuple(body["prompt"]), body.get("cache_salt", "")
        if len(ids) + body["max_tokens"] > self.longest:
            raise ValueError("the prompt is too long")
        self.calls += 1
        with self.cache.request(ids, salt if self.caches else str(self.calls)) as request:
            cached = by_vllms_rule(request.found, len(ids), self.block_size) + self.off_by if self.caches else 0
            prefill = self.cache.compute(request)
        self.hits += cached
        if body.get("logprobs"):
            found = decoded(self.model, ids, prefill, body["max_tokens"])
            for token, own, gap in zip(found.ids, found.logprobs, found.gaps, strict=True):
                name = f"token_id:{token}"
                top = {name: own, "token_id:0" if token else "token_id:1": own - gap}
                yield {
                    "choices": [
                        {"text": "", "logprobs": {"tokens": [name], "token_logprobs": [own], "top_logprobs": [top]}}
                    ]
                }
        else:
            yield {"choices": [{"text": str(int(prefill.logits.argmax())), "logprobs": None}]}
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
        yield {"choices": [], "usage": {"completion_tokens": body["max_tokens"], **details}}

    def page(self, path: str) -> str | None:
        labels = f'block_size="{self.block_size}",enable_prefix_caching="{self.caches}",engine="0"'
        return {
            "/v1/models": json.dumps({"data": [{"id": self.name, "max_model_len": self.longest}]}),
            "/version": json.dumps({"version": "stand-in"}),
            "/metrics": f"# HELP ...\nvllm:cache_config_info{{{labels}}} 1.0\n"
            f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.hits)}\nprocess_threads 3\n',
        }.get(path)


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_GET(self) -> None:
        page = self.stand_in.page(self.path)
        self._send(404 if page is None else 200, (page or "not found").encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            with torch.inference_mode():
                events = list(self.stand_in.complete(body))
        except ValueError as error:
            return self._send(400, json.dumps({"error": {"message": str(error)}}).encode())
        lines = [json.dumps(event) for event in events] + ["[DONE]"]
        return self._send(200, "".join(f"data: {line}\n\n" for line in lines).encode())

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def served(stand_in: StandIn) -> Iterator[str]:
    """The address at which it answers while the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stand_in": stand_in}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
