"""A real vLLM server, with its prefix cache and without: what its answers say was cached, and the anthropic SDK."""

import os
import uuid

import anthropic
import pytest

from experiments.serving_summary import by_vllms_rule
from replication.caches.prefix import PrefixCache
from replication.errors import ReplicationError
from replication.vllm import VLLM

SERVERS = dict(address.split("=", 1) for address in os.environ.get("REPLICATION_VLLM", "").split())
pytestmark = pytest.mark.skipif(not SERVERS, reason="no vLLM server: run `bash scripts/engines/vllm.sh`")
BLOCK = 32


@pytest.fixture(scope="module")
def vllm() -> VLLM:
    return VLLM(SERVERS["url"])


@pytest.fixture(scope="module")
def uncached() -> VLLM:
    return VLLM(SERVERS["uncached_url"])


@pytest.fixture
def salt() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def text_ids(smollm2) -> tuple[int, ...]:
    return tuple(smollm2.tokenizer("The lighthouse of Velm was lit before the harbour had a name. " * 20)["input_ids"])


def test_it_says_how_it_was_started(vllm, uncached):
    assert (vllm.caches, uncached.caches) == (True, False)
    assert vllm.block_size == BLOCK
    assert vllm.longest == 4096


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 96, 97])
def test_a_repeated_prompt_is_found_up_to_its_last_whole_block_but_never_whole(vllm, smollm2, text_ids, salt, length):
    ids, ours = text_ids[:length], PrefixCache(smollm2, blocks=8, block_size=BLOCK)
    assert vllm.complete(ids, salt).cached == 0
    ours.prefill(ids, salt)
    with ours.request(ids, salt) as request:
        found = request.found
    cached = vllm.complete(ids, salt).cached
    assert cached == by_vllms_rule(found, length, BLOCK) == (length - 1) // BLOCK * BLOCK


def test_a_salt_separates_tenants(vllm, text_ids, salt):
    vllm.complete(text_ids[:100], salt)
    assert vllm.complete(text_ids[:100], salt + " other").cached == 0
    assert vllm.complete(text_ids[:100], salt).cached == 96


def test_without_prefix_caching_nothing_is_found(uncached, text_ids, salt):
    assert [uncached.complete(text_ids[:100], salt).cached for _ in range(2)] == [0, 0]


def test_greedy_tokens_come_with_their_likelihoods(vllm, text_ids, salt):
    found = vllm.complete(text_ids, salt, count=5, logprobs=True)
    assert len(found.ids) == len(found.logprobs) == len(found.gaps) == 5
    assert max(found.logprobs) <= 0 <= min(found.gaps)
    assert vllm.complete(text_ids, salt, count=5, logprobs=True).ids == found.ids
    assert vllm.complete(text_ids, salt, count=1).ids == ()


def test_its_refusals_are_one_line(vllm, text_ids, salt):
    with pytest.raises(ReplicationError, match="refuses /v1/completions"):
        vllm.complete(text_ids * 40, salt)


# --- the anthropic SDK


@pytest.fixture
def client() -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=SERVERS["url"], api_key="local", max_retries=0)


def body(vllm: VLLM, salt: str, question: str = "Who lit the lighthouse?"):
    documents = "Document: the lighthouse of Velm was lit by Orla Finch, who came from Harwick by sea.\n" * 20
    marked = {"type": "text", "text": documents, "cache_control": {"type": "ephemeral"}}
    return {
        "model": vllm.name,
        "max_tokens": 4,
        "system": [marked],
        "messages": [{"role": "user", "content": question}],
        # the SDK itself no longer takes a temperature
        "extra_body": {"cache_salt": salt, "temperature": 0},
    }


def test_the_sdk_sees_a_write_then_a_read(client, vllm, salt):
    first, second, other = (
        client.messages.create(**body(vllm, salt, question)).usage
        for question in ("Who lit the lighthouse?", "Who lit the lighthouse?", "Where did she come from?")
    )
    assert first.cache_creation_input_tokens > 10 * BLOCK
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert 10 * BLOCK < other.cache_read_input_tokens <= second.cache_read_input_tokens
    assert other.cache_read_input_tokens % BLOCK == 0
    assert client.messages.create(**body(vllm, salt + " other")).usage.cache_read_input_tokens == 0


def test_the_sdk_streams(client, vllm, salt):
    whole = client.messages.create(**body(vllm, salt))
    with client.messages.stream(**body(vllm, salt)) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == whole.content[0].text
    assert message.usage.cache_read_input_tokens == whole.usage.cache_creation_input_tokens
    assert message.usage.output_tokens == 4


def test_break_points_mean_nothing_to_it(client, vllm, salt):
    """It caches every whole block, marked or not."""
    request = body(vllm, salt)
    del request["system"][0]["cache_control"]
    client.messages.create(**request)
    assert client.messages.create(**request).usage.cache_read_input_tokens > 10 * BLOCK
