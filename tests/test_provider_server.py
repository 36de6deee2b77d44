"""The real anthropic SDK against the local server: scripts run unchanged and see their counters."""

import json
import runpy
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import anthropic
import pytest

from replication.caches.provider.answer import Answerer
from replication.caches.provider.anthropic import PromptCache
from replication.caches.provider.request import tokenizer_of
from replication.caches.provider.server import PromptServer
from replication.errors import ReplicationError

MODEL = "claude-fable-5"  # 512 tokens are enough, as of 2026-10
INSTRUCTIONS = "You are a precise technical editor. " * 80


class Clock:
    """Time that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(smollm2, clock):
    cache = PromptCache(date(2026, 11, 1), tokenizer_of(smollm2.tokenizer))
    with PromptServer(cache, Answerer(smollm2, longest=4), clock=clock) as running:
        yield running


@pytest.fixture
def client(server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="local", max_retries=0)


def ask(client, question: str, instructions: str = INSTRUCTIONS, **fields):
    marked = {"type": "text", "text": instructions, "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": question}]
    return client.messages.create(
        **{"model": MODEL, "max_tokens": 512, "system": [marked], "messages": messages} | fields
    )


def test_the_first_call_writes_and_the_second_reads(client, clock):
    first, second = ask(client, "What is a cache?").usage, ask(client, "What is a block?").usage
    assert first.cache_creation_input_tokens > 512
    assert first.cache_creation.ephemeral_5m_input_tokens == first.cache_creation_input_tokens
    assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert second.cache_creation_input_tokens == 0
    assert 0 < second.input_tokens < 20
    clock.now = 300
    assert ask(client, "And now?").usage.cache_read_input_tokens == 0


def test_the_articles_script_runs_as_it_is(server, monkeypatch):
    script = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "prompt_cache_article.py"))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
    first, second = script["two_calls"](anthropic.Anthropic(), script["INSTRUCTIONS"][: 36 * 150])
    assert (first.cache_creation_input_tokens, first.cache_read_input_tokens) == (1051, 0)
    assert (second.cache_creation_input_tokens, second.cache_read_input_tokens) == (0, 1051)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert script["main"](["--paid-api"]) == script["main"](["--free"]) == 2


def test_below_the_minimum_both_counters_are_zero_and_the_model_answers(client):
    message = ask(client, "What is the capital of France?", "Be brief.", max_tokens=2)
    assert message.usage.cache_creation_input_tokens == message.usage.cache_read_input_tokens == 0
    assert message.content[0].text == "The capital"
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


def test_streaming_gives_the_same_text_and_counters(client):
    whole = ask(client, "What is a cache?")
    marked = {"type": "text", "text": INSTRUCTIONS, "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": "What is a cache?"}]
    with client.messages.stream(model=MODEL, max_tokens=512, system=[marked], messages=messages) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) == message.usage.output_tokens == 4
    assert "".join(pieces) == message.content[0].text == whole.content[0].text
    assert message.usage.cache_read_input_tokens == whole.usage.cache_creation_input_tokens
    assert message.stop_reason == "max_tokens"


class Together(Answerer):
    """Answers when two requests have come in."""

    came = threading.Barrier(2)

    def __call__(self, body):
        self.came.wait(timeout=30)
        return super().__call__(body)


def test_concurrent_first_requests_all_write(client, server, smollm2, monkeypatch):
    monkeypatch.setattr(server, "answerer", Together(smollm2, longest=1))
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(client, "Hi").usage)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [usage.cache_read_input_tokens for usage in found] == [0, 0]
    assert all(usage.cache_creation_input_tokens > 512 for usage in found)


def test_workspaces_share_nothing(client):
    ask(client, "Hi")
    other = client.with_options(default_headers={"x-workspace": "other"})
    assert ask(other, "Hi").usage.cache_read_input_tokens == 0


def test_the_sdk_raises_the_apis_errors(client):
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    with pytest.raises(anthropic.BadRequestError, match="a maximum of 4 blocks with cache_control") as caught:
        ask(client, "Hi", system=[marked] * 5)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError, match="the nearest model is claude-fable-5"):
        ask(client, "Hi", model="claude-fabel-5")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, "word " * 9000)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        ask(client, "Hi", max_tokens=0)
    with pytest.raises(anthropic.NotFoundError):
        client.models.list()


@pytest.mark.parametrize(
    ("path", "data", "status"), [("/v1/messages", b"{", 400), ("/v1/messages", b"[]", 400), ("/v1/else", b"{}", 404)]
)
def test_other_requests_get_error_bodies(server, path, data, status):
    with pytest.raises(urllib.request.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(server.url + path, data=data))
    assert caught.value.code == status
    assert json.loads(caught.value.read())["type"] == "error"


def test_an_api_key_is_neither_logged_nor_kept(server, client, capfd, caplog):
    secret = client.with_options(api_key="key-that-nobody-may-see")
    ask(secret, "Hi", "Be brief.")
    with pytest.raises(anthropic.BadRequestError):
        ask(secret, "Hi", max_tokens=0)
    assert "key-that-nobody-may-see" not in "".join(capfd.readouterr()) + caplog.text
    assert "key-that-nobody-may-see" not in repr(vars(server)) + repr(vars(server.cache))


def test_the_command_serves_until_ctrl_c():
    command = [sys.executable, "-m", "replication", "prompt-server", "--port", "0", "--on", "2026-11-01"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # a background job's children are born deaf to it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        url = process.stdout.readline().strip().removeprefix("ANTHROPIC_BASE_URL=")
        client = anthropic.Anthropic(base_url=url, api_key="local")
        assert ask(client, "What is the capital of France?", "Be brief.", max_tokens=2).content[0].text == "The capital"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()


def test_a_model_without_a_chat_template_is_refused(tiny):
    tokenizer = SimpleNamespace(chat_template=None)
    with pytest.raises(ReplicationError, match="has no chat template"):
        Answerer(replace(tiny("llama"), tokenizer=tokenizer))


def test_a_port_that_is_taken_is_a_clear_error(server):
    with pytest.raises(ReplicationError, match="cannot serve on port"):
        PromptServer(server.cache, server.answerer, port=int(server.url.rpartition(":")[2]))
