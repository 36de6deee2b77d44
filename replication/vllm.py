"""A client of a vLLM server on the completions API, for prompts that are token ids: times, tokens, and what was cached.

How to start one: `bash scripts/engines/vllm.sh serve`.
"""

import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from replication.errors import ReplicationError

_METRIC = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Greedy:
    """ids: greedy tokens. logprobs: of each, in nats. gaps: by how much the logit of each exceeds the next best."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True)
class Completion(Greedy):
    """cached: prompt tokens that were not computed. ttft: seconds from sending the request to the first token."""

    cached: int
    ttft: float


class VLLM:
    """A running server of one model. name: as it serves it. version: of vLLM. longest: tokens of prompt and output
    together. block_size: tokens. caches: whether prefix caching is on.

    Errors: ReplicationError when no server answers, or it is none of vLLM's.
    """

    def __init__(self, url: str, timeout: float = 600.0):
        address = re.fullmatch(r"http://([^/:]+):(\d+)/?", url)
        if address is None:
            raise ReplicationError(f"'{url}' is no server's address: give one like http://127.0.0.1:8011")
        self.url, self._address, self._timeout = url, (address[1], int(address[2])), timeout
        try:
            (model,) = json.loads(self._get("/v1/models"))["data"]
            self.name, self.longest = model["id"], model["max_model_len"]
            self.version = json.loads(self._get("/version"))["version"]
            (labels,) = (labels for name, labels, _ in self._metrics() if name == "vllm:cache_config_info")
            self.block_size, self.caches = int(labels["block_size"]), labels["enable_prefix_caching"] == "True"
        except (ValueError, KeyError, TypeError) as error:
            raise ReplicationError(f"the server at {url} is no vLLM server of one model: give another url") from error

    def complete(self, ids: Sequence[int], salt: str = "", count: int = 1, logprobs: bool = False) -> Completion:
        """Greedily `count` tokens behind the prompt `ids`, never ending early. salt: as in PrefixCache.request.
        logprobs: whether they are wanted; without them a Completion has no ids either."""
        body = {
            "model": self.name,
            "prompt": list(ids),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if salt:  # vLLM refuses an empty one
            body["cache_salt"] = salt
        if logprobs:
            body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        ttft, tokens, usage = None, [], {}
        begun = time.perf_counter()
        for event in self._stream("/v1/completions", body):
            for choice in event["choices"]:
                ttft = ttft or time.perf_counter() - begun
                tokens += _tokens(choice.get("logprobs"))
            usage = event.get("usage") or usage
        if ttft is None or usage.get("completion_tokens") != count:
            raise ReplicationError(f"vLLM at {self.url} broke off after {usage.get('completion_tokens')} tokens")
        found, likelihoods, gaps = zip(*tokens, strict=True) if tokens else ((), (), ())
        # left out where it is 0
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Completion(found, likelihoods, gaps, cached, ttft)

    def counter(self, name: str) -> float:
        """The sum of a counter of its metrics, e.g. `vllm:prefix_cache_hits_total`."""
        return sum(value for known, _, value in self._metrics() if known == name)

    def _metrics(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for match in _METRIC.finditer(self._get("/metrics")):
            yield match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"])

    def _get(self, path: str) -> str:
        connection, response = self._send("GET", path)
        with closing(connection), response:
            return response.read().decode()

    def _stream(self, path: str, body: dict) -> Iterator[dict]:
        """The events of a streamed answer, as they come."""
        connection, response = self._send("POST", path, json.dumps(body))
        with closing(connection), response:
            try:
                for line in response:
                    data = line.decode().removeprefix("data: ").strip()
                    if not data or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise ReplicationError(f"vLLM at {self.url} gave up: {event['error']}")
                    yield event
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(error) from error

    def _send(self, method: str, path: str, body: str | None = None):
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._silent(error) from error
        if response.status != 200:
            reason = " ".join(response.read().decode(errors="replace").split())[:300]
            connection.close()
            raise ReplicationError(f"vLLM at {self.url} refuses {path} ({response.status}): {reason}")
        return connection, response

    def _silent(self, error: Exception) -> ReplicationError:
        return ReplicationError(
            f"no vLLM server answers at {self.url} ({error}): start one with `bash scripts/engines/vllm.sh serve`, or "
            "give its address with --set url=..."
        )


def _tokens(logprobs: dict | None) -> Iterator[tuple[int, float, float]]:
    """(token id, its log-probability, by how much that exceeds the next best) for each token of a choice."""
    if logprobs:
        for token, own, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            rest = [value for name, value in top.items() if name != token]
            yield int(token.removeprefix("token_id:")), own, own - max(rest)
