"""What the parts of `serving` share: settings, the servers, checked, and a request to our own prefix cache."""

import secrets
from dataclasses import dataclass

from experiments.common import RagConfig, require_positive
from replication.caches.prefix import PrefixCache
from replication.errors import ReplicationError
from replication.fuse import Prefill
from replication.runner import model_label
from replication.vllm import VLLM


@dataclass(frozen=True)
class ServingConfig(RagConfig):
    """url, uncached_url: vLLM servers of this model in this dtype, as their name (`served`) says, with prefix caching
    on, in blocks of `block_size` tokens, and off. blend_url: one with LMCache's blending, or none.

    counts: `streams` of `requests` prompts of up to `longest` random tokens; each begins as an earlier one, under one
    of `salts` salts. times: prompts of `length` tokens (a shared prefix of `prefix`, chunks of `chunk`, a question of
    `fresh` tokens), cut from the text of `examples` examples, in `rounds` after one warm-up. answers: `output` greedy
    tokens behind the prompts of n examples.
    """

    n: int = 20
    dtype: str = "bfloat16"
    url: str = "http://127.0.0.1:8011"
    uncached_url: str = "http://127.0.0.1:8012"
    blend_url: str = ""
    block_size: int = 32
    streams: int = 6
    requests: int = 20
    longest: int = 384
    salts: int = 2
    examples: int = 60
    length: int = 2048
    chunk: int = 256
    prefix: int = 32
    fresh: int = 48
    rounds: int = 7
    output: int = 32

    def __post_init__(self):
        counts = ("block_size", "streams", "requests", "salts", "examples", "chunk", "prefix", "fresh", "rounds")
        require_positive(self, "n", *counts)
        if self.longest <= self.block_size or self.output < 2:
            raise ReplicationError("longest must exceed a block, and output be at least 2 tokens")
        if self.length <= self.prefix + self.fresh + self.block_size:
            raise ReplicationError("length must exceed prefix, question and one block together")

    @property
    def place(self) -> str:
        return f"{self.dataset}-{self.dtype}"

    @property
    def served(self) -> str:
        """The name under which vLLM must serve the model: it tells no dtype otherwise."""
        return f"{model_label(self.model)}-{self.dtype}"


class Servers:
    """The servers that a config names. Errors: ReplicationError for one that is not there, or not as it must be."""

    def __init__(self, config: ServingConfig):
        # part of every salt, so that nothing is found of what a server was asked before this run
        self._nonce = secrets.token_hex(4)
        self.cached, self.uncached = VLLM(config.url), VLLM(config.uncached_url)
        self.blending = VLLM(config.blend_url) if config.blend_url else None
        if not self.cached.caches or self.cached.block_size != config.block_size:
            raise ReplicationError(
                f"vLLM at {config.url} must cache prefixes in blocks of {config.block_size} tokens: start it with "
                f"--enable-prefix-caching --block-size {config.block_size}, or set block_size"
            )
        if self.uncached.caches:
            raise ReplicationError(
                f"vLLM at {config.uncached_url} must not cache prefixes: start it with --no-enable-prefix-caching"
            )
        longest = max(config.length, config.longest) + config.output
        for server in filter(None, (self.cached, self.uncached, self.blending)):
            if server.name != config.served:
                raise ReplicationError(
                    f"vLLM at {server.url} serves '{server.name}', not '{config.served}': start it with this model, "
                    f"--dtype {config.dtype} and --served-model-name {config.served}, or set model or dtype"
                )
            if server.longest < longest:
                raise ReplicationError(
                    f"vLLM at {server.url} takes {server.longest} tokens, {longest} are needed: raise --max-model-len"
                )

    def salt(self, name: str) -> str:
        return f"{self._nonce} {name}"


def ask_ours(cache: PrefixCache, ids: tuple[int, ...], salt: str) -> tuple[Prefill, dict[str, int]]:
    """Our prefill, and what it found: whole blocks that the pool has (`found`), and tokens `reused`."""
    with cache.request(ids, salt) as request:
        prefill = cache.compute(request)
    return prefill, {"tokens": len(ids), "found": request.found, "reused": prefill.report.reused}
