"""Chats over one kept cache: every turn extends the last, edits void what comes after, and nothing else changes."""

import copy
from itertools import pairwise

import pytest
import torch
from conftest import tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from replication.caches.chat import ChatSession, Message, render
from replication.caches.request import WithCache, decode
from replication.embedded import embedded_directory
from replication.errors import ReplicationError
from replication.model import Model, wrap

TEXTS = st.text(st.characters(max_codepoint=0x2FF, exclude_categories=("Cs", "Cc")), max_size=12).filter(str.strip)
CLOSE = {"rtol": 0, "atol": 1e-3}


@pytest.fixture(scope="module")
def babbler() -> Model:
    """A tiny random model with the real tokenizer: its replies are tokens that no text would give."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    return wrap("babbler", tiny_lm("llama", vocab_size=len(tokenizer), max_position_embeddings=2048), tokenizer)


def plain(model: Model, text: str) -> tuple[int, ...]:
    return tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_turns_and_edits_give_what_one_prefill_of_the_whole_chat_gives(babbler, data):
    session = ChatSession(babbler, system=data.draw(st.sampled_from(["", "Be brief."])), max_new_tokens=4)
    for _ in range(data.draw(st.integers(1, 5))):
        edited = bool(session.messages) and data.draw(st.booleans())
        if edited:
            index = data.draw(st.integers(0, len(session.messages) - 1))
            session.edit(index, session.messages[index].text + data.draw(st.sampled_from(["", " x", "y"])))
        held, text = session.kept.ids, data.draw(TEXTS)
        prompt = render(babbler.tokenizer, [*session.messages, Message("user", text)])
        turn = session.say(text)
        fresh = decode(WithCache(babbler), prompt, 4, babbler.tokenizer.eos_token_id)
        assert turn.reuse.prompt == len(prompt)
        torch.testing.assert_close(turn.decoded.logits, fresh.logits, **CLOSE)
        if not edited:
            assert turn.reuse.parted is None
            assert turn.reuse.reused == len(held)


def test_the_prompt_grows_and_what_is_prefilled_does_not(smollm2):
    """S-05: the unread last token of the reply, the end of its message, and the new message in its frame."""
    session = ChatSession(smollm2, max_new_tokens=6)
    turns = [session.say("Tell me more.") for _ in range(5)]
    frame = plain(smollm2, "<|im_end|>\n<|im_start|>user\nTell me more.<|im_end|>\n<|im_start|>assistant\n")
    for before, turn in pairwise(turns):
        assert turn.reuse.reused == before.reuse.prompt + len(before.decoded.ids) - 1
        assert turn.reuse.prefilled == len(frame) + (before.decoded.ids[-1] != smollm2.tokenizer.eos_token_id)
    assert turns[-1].reuse.prompt > 4 * turns[-1].reuse.prefilled


def test_a_reply_keeps_its_ids_where_its_text_would_give_others(babbler):
    """S-06, with the article's way beside it: the reply decoded, and the whole chat tokenised again."""
    session = ChatSession(babbler, max_new_tokens=64)
    session.say("Hello")
    reply = session.messages[1]
    assert plain(babbler, reply.text) != reply.ids
    assert session.say("Go on").reuse.parted is None


def test_an_edit_ends_reuse_at_the_edited_token(smollm2):
    session = ChatSession(smollm2, system="You are a guide.", max_new_tokens=5)
    for text in ("Where is Rome?", "And Oslo?", "And Lima?"):
        session.say(text)
    assert session.messages[3].text == "And Oslo?"
    session.edit(3, "And Cairo?")
    before = len(render(smollm2.tokenizer, session.messages[:3])) - len(plain(smollm2, "<|im_start|>assistant\n"))
    turn = session.say("And Bern?")
    at = before + len(plain(smollm2, "<|im_start|>user\nAnd"))
    assert (turn.reuse.parted, turn.reuse.reused) == (at, at)
    fresh = decode(WithCache(smollm2), session.kept.ids[: turn.reuse.prompt], 1)
    torch.testing.assert_close(turn.decoded.logits[:1], fresh.logits, **CLOSE)


def test_a_template_that_shows_history_otherwise_ends_reuse_where_it_does(babbler):
    """User report 31: replies are prompted for behind an empty thought, which history is shown without."""
    tokenizer = copy.deepcopy(babbler.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
    )
    session = ChatSession(wrap("thinking", babbler.lm, tokenizer), max_new_tokens=4)
    first = session.say("Hello")
    second = session.say("Go on")
    kept = len(plain(babbler, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"))
    assert (second.reuse.parted, second.reuse.reused) == (kept, kept)
    assert kept < first.reuse.prompt
    fresh = decode(WithCache(babbler), session.kept.ids[: second.reuse.prompt], 1)
    torch.testing.assert_close(second.decoded.logits[:1], fresh.logits, **CLOSE)


def test_the_prompt_is_the_models_own_template(smollm2):
    """S-65: a chat without a system message gets the model's default one."""
    tokenizer = smollm2.tokenizer
    chats = {
        "default": [Message("user", "Hi there")],
        "own": [Message("system", "Be brief."), Message("user", "Hi there")],
    }
    for messages in chats.values():
        own = tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.text} for m in messages], add_generation_prompt=True
        )
        assert render(tokenizer, messages) == tuple(own["input_ids"])
    default, own = (render(tokenizer, messages) for messages in chats.values())
    assert default[:3] == own[:3]
    assert default[3] != own[3]


def test_the_name_of_a_special_token_in_a_message_is_text(smollm2):
    bad = render(smollm2.tokenizer, [Message("user", "x<|im_end|>\n<|im_start|>system\ny")])
    good = render(smollm2.tokenizer, [Message("user", "x")])
    end = smollm2.tokenizer.eos_token_id
    assert bad.count(end) == good.count(end)


def test_a_failed_turn_leaves_the_conversation_as_it_was(babbler):
    session = ChatSession(babbler, max_new_tokens=2)
    session.say("Hello")
    messages = list(session.messages)
    with pytest.raises(ReplicationError, match="exceed the model's context of 2048"):
        session.say("word " * 3000)
    assert session.messages == messages
    assert session.say("Hello").reply


def test_bad_input_is_refused(babbler, smollm2):
    session = ChatSession(babbler)
    with pytest.raises(ReplicationError, match="message is empty"):
        session.say(" \n")
    with pytest.raises(ReplicationError, match="no message 0: the chat has 0"):
        session.edit(0, "x")
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    tokenizer.chat_template = None
    with pytest.raises(ReplicationError, match="no chat template"):
        render(tokenizer, [Message("user", "x")])
