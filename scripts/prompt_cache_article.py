"""The article's two calls with the anthropic SDK: one writes the instructions, the next reads them (S-30, S-31).

`python scripts/prompt_cache_article.py` asks a local server (about half a minute). With `--paid-api` it asks Anthropic
instead, for a few cents, with the key in ANTHROPIC_API_KEY, which only the SDK reads.
"""

import os
import sys
from datetime import date

import anthropic

from replication.caches.provider.answer import Answerer
from replication.caches.provider.anthropic import PromptCache
from replication.caches.provider.request import tokenizer_of
from replication.caches.provider.server import PromptServer
from replication.model import load_model

MODEL = "claude-sonnet-4-6"
INSTRUCTIONS = "You are a precise technical editor. " * 400
QUESTIONS = ("What is a KV cache?", "What is a prefix cache?")


def two_calls(client: anthropic.Anthropic, instructions: str = INSTRUCTIONS) -> list[anthropic.types.Usage]:
    """The usage counters of both calls."""
    marked = {"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}}
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [client.messages.create(model=MODEL, max_tokens=512, system=[marked], messages=m).usage for m in messages]


def show(usages: list[anthropic.types.Usage]) -> None:
    for question, usage in zip(QUESTIONS, usages, strict=True):
        print(
            f"{question:<24} written {usage.cache_creation_input_tokens}, read {usage.cache_read_input_tokens}, "
            f"rest {usage.input_tokens}"
        )


def main(arguments: list[str]) -> int:
    if arguments == ["--paid-api"]:
        if not os.environ.get("ANTHROPIC_API_KEY"):
            print("error: --paid-api needs a key in ANTHROPIC_API_KEY", file=sys.stderr)
            return 2
        show(two_calls(anthropic.Anthropic()))
    elif arguments:
        print(f"error: unknown option {arguments[0]}; the only one is --paid-api", file=sys.stderr)
        return 2
    else:
        model = load_model("smollm2-135m")
        cache = PromptCache(date.today(), tokenizer_of(model.tokenizer))
        with PromptServer(cache, Answerer(model)) as server:
            show(two_calls(anthropic.Anthropic(base_url=server.url, api_key="local")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
