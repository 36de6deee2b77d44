"""Prompts: exact spans, chunk ids that depend on the chunk alone, and refusals that say what to do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from replication.context import Context
from replication.data.example import Passage
from replication.errors import ReplicationError
from replication.prompt import (
    PromptFormat,
    answer_ids,
    build_prompt,
    chain,
    first_difference,
    passage_text,
    without_passages,
)
from replication.task import DIALOGUE_SUMMARY, QA

# no "<", so that no text spells a special token; the real tokenizer knows no bytes of unassigned characters
LETTERS = st.characters(max_codepoint=0xFFFF, exclude_characters="<", exclude_categories=("Cs", "Cc", "Cn"))
TEXT = st.text(LETTERS, max_size=30)
PASSAGES = st.lists(st.builds(Passage, TEXT, TEXT), min_size=1, max_size=4).map(tuple)
QUESTION = TEXT.filter(str.strip)
SEPARATORS = st.sampled_from(["", "\n", " # # ", "###\n"])
IDS = st.lists(st.integers(0, 3), max_size=6).map(tuple)
KINDS = st.sampled_from(["passage", "separator"])

TWO = (Passage("One", "The first text."), Passage("Two", "The second text."))


def byte_tokenizer(adds_bos: bool, bos: str | None = "<s>", template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, and a BOS in front of every text if `adds_bos`, as Llama's tokenizer puts one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<s>"])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos)
    made.chat_template = template
    return made


@pytest.fixture(scope="module", params=["real", "adds BOS"])
def tokenizer(request):
    return byte_tokenizer(True) if request.param == "adds BOS" else request.getfixturevalue("smollm2").tokenizer


def plain(tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def of_kind(prompt, kind: str) -> list[tuple[int, ...]]:
    return [s.ids for s in prompt.segments if s.kind == kind]


@given(PASSAGES, QUESTION, SEPARATORS)
@settings(deadline=None, max_examples=40)
def test_segments_make_up_the_prompt_without_gaps(tokenizer, passages, question, separator):
    prompt = build_prompt(passages, question, tokenizer, PromptFormat(separator=separator))
    assert prompt.ids == tuple(i for s in prompt.segments for i in s.ids)
    assert len(prompt) == len(prompt.ids)
    at = 0
    for segment in prompt.segments:
        assert segment.start == at
        assert segment.ids
        assert prompt.ids[segment.start : segment.stop] == segment.ids
        at = segment.stop
    assert at == len(prompt)


@given(PASSAGES, QUESTION, SEPARATORS)
@settings(deadline=None, max_examples=40)
def test_what_is_a_chunk_and_what_is_not(tokenizer, passages, question, separator):
    prompt = build_prompt(passages, question, tokenizer, PromptFormat(separator=separator))
    kinds = [s.kind for s in prompt.segments]
    between = ["passage", "separator"] if separator else ["passage"]
    assert kinds == ["prefix", *(between * len(passages))[: len(between) * len(passages) - bool(separator)], "question"]
    assert [s.kind for s in prompt.chunks] == ["prefix", *["passage"] * len(passages)]
    assert of_kind(prompt, "separator") == [plain(tokenizer, separator)] * kinds.count("separator")
    last = prompt.segments[-1]
    assert last not in prompt.chunks
    assert tokenizer.decode(last.ids).endswith(QA.cue)
    assert prompt.prefix_ids == prompt.segments[0].ids


@given(PASSAGES, QUESTION, QUESTION, SEPARATORS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_chunk_ids_depend_on_the_chunk_alone(tokenizer, passages, question, other, separator, random):
    """Not on order, neighbours, question or separator: the same ids as in a prompt where it is alone."""
    order = list(range(len(passages)))
    random.shuffle(order)
    shuffled = tuple(passages[i] for i in order)
    prompt = build_prompt(passages, question, tokenizer)
    again = build_prompt(shuffled, other, tokenizer, PromptFormat(separator=separator))
    alone = [of_kind(build_prompt((p,), "Why?", tokenizer), "passage")[0] for p in passages]
    assert of_kind(prompt, "passage") == alone
    assert of_kind(again, "passage") == [alone[i] for i in order]
    assert alone == [plain(tokenizer, passage_text(p)) for p in passages]
    assert prompt.prefix_ids == again.prefix_ids


@given(PASSAGES, QUESTION, SEPARATORS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_reordered_is_the_prompt_of_the_reordered_passages(tokenizer, passages, question, separator, random):
    order = list(range(len(passages)))
    random.shuffle(order)
    style = PromptFormat(separator=separator)
    prompt = build_prompt(passages, question, tokenizer, style)
    again = prompt.reordered(order)
    assert again == build_prompt(tuple(passages[i] for i in order), question, tokenizer, style)
    assert again.reordered([order.index(i) for i in range(len(order))]) == prompt


@given(PASSAGES, QUESTION)
@settings(deadline=None, max_examples=20)
def test_the_prompt_reads_as_its_texts(tokenizer, passages, question):
    prompt = build_prompt(passages, question, tokenizer)
    text = tokenizer.decode(prompt.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert text.startswith(QA.instruction)
    assert text.endswith("".join(map(passage_text, passages)) + f"Question: {question.strip()}\n{QA.cue}")


@given(PASSAGES, SEPARATORS, st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_recutting_leaves_the_tokens_and_cuts_chunks_of_one_length(tokenizer, passages, separator, length):
    prompt = build_prompt(passages, "Why?", tokenizer, PromptFormat(separator=separator))
    again = prompt.recut(length)
    assert again.ids == prompt.ids
    assert (again.prefix_ids, again.segments[-1].ids) == (prompt.prefix_ids, prompt.segments[-1].ids)
    *whole, last = [len(ids) for ids in of_kind(again, "passage")]
    assert all(size == length for size in whole)
    assert 1 <= last <= length


def test_no_chunk_is_shorter_than_a_token(tokenizer):
    with pytest.raises(ReplicationError, match="at least 1 token, not 0"):
        build_prompt(TWO, "Why?", tokenizer).recut(0)


def test_a_dialogue_is_asked_for_as_the_examples_show_it(smollm2):
    style = PromptFormat(task=DIALOGUE_SUMMARY)
    shown = (Passage("", "Ada: Hi\nSummary: Ada greets."),)
    prompt = build_prompt(shown, "Piet: Bye", smollm2.tokenizer, style)
    text = smollm2.tokenizer.decode(prompt.ids)
    asked = "Dialogue:\nAda: Hi\nSummary: Ada greets.\n\nDialogue:\nPiet: Bye\nSummary:"
    assert text == DIALOGUE_SUMMARY.instruction + asked


# --- BOS


@pytest.mark.parametrize("separator", ["", " # # "])
@pytest.mark.parametrize(("adds", "wanted", "count"), [(True, None, 1), (True, False, 0), (True, True, 1)])
def test_bos_is_there_once_or_not_at_all(adds, wanted, count, separator):
    """Never again inside, whatever the tokenizer adds to each text it is given."""
    tokenizer = byte_tokenizer(adds)
    prompt = build_prompt(TWO, "Why?", tokenizer, PromptFormat(separator=separator, bos=wanted))
    assert prompt.ids.count(tokenizer.bos_token_id) == count
    assert (prompt.ids[0] == tokenizer.bos_token_id) == bool(count)


@pytest.mark.parametrize(("wanted", "count"), [(None, 0), (False, 0), (True, 1)])
def test_bos_of_a_tokenizer_that_adds_none(smollm2, wanted, count):
    for tokenizer in (smollm2.tokenizer, byte_tokenizer(False)):
        prompt = build_prompt(TWO, "Why?", tokenizer, PromptFormat(bos=wanted))
        assert prompt.ids.count(tokenizer.bos_token_id) == count
        assert (prompt.ids[0] == tokenizer.bos_token_id) == bool(count)


def test_bos_changes_nothing_but_the_prefix():
    with_it, without = (build_prompt(TWO, "Why?", byte_tokenizer(True), PromptFormat(bos=b)) for b in (True, False))
    assert with_it.ids[1:] == without.ids
    assert [s.ids for s in with_it.segments[1:]] == [s.ids for s in without.segments[1:]]


def test_bos_is_not_doubled_where_the_template_writes_it():
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[answer]"
    for wanted in (None, True):
        tokenizer = byte_tokenizer(True, template=template)
        prompt = build_prompt(TWO, "Why?", tokenizer, PromptFormat(template="chat", bos=wanted))
        assert prompt.ids[0] == 256
        assert prompt.ids.count(256) == 1
        assert tokenizer.decode(prompt.ids[1:]).startswith("[user]" + QA.instruction)


def test_bos_without_a_bos_token_is_refused():
    with pytest.raises(ReplicationError, match="no BOS token: use bos=false"):
        build_prompt(TWO, "Why?", byte_tokenizer(False, bos=None), PromptFormat(bos=True))
    assert build_prompt(TWO, "Why?", byte_tokenizer(False, bos=None)).ids


# --- chat template


def test_chat_prompt_is_the_models_own_template(smollm2):
    tokenizer, question = smollm2.tokenizer, "Which is the second?"
    prompt = build_prompt(TWO, f"  {question} ", tokenizer, PromptFormat(template="chat"))
    content = QA.instruction + "".join(map(passage_text, TWO)) + f"Question: {question}\n"
    chat = [{"role": "user", "content": content}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(prompt.ids) == rendered
    head, tail = rendered.split(content)
    assert tail.endswith("<|im_start|>assistant\n")
    pieces = [head + QA.instruction, *map(passage_text, TWO), f"Question: {question}\n{tail}"]
    assert [s.ids for s in prompt.segments] == [plain(tokenizer, piece) for piece in pieces]
    assert [s.kind for s in prompt.segments] == ["prefix", "passage", "passage", "question"]
    for end in ("<|im_start|>", "<|im_end|>"):  # as single tokens, not as text
        assert prompt.ids.count(tokenizer.convert_tokens_to_ids(end)) == rendered.count(end)


def test_chat_and_plain_share_passage_chunks(smollm2):
    chat, plain_ = (build_prompt(TWO, "Why?", smollm2.tokenizer, PromptFormat(template=t)) for t in ("chat", "plain"))
    assert of_kind(chat, "passage") == of_kind(plain_, "passage")
    assert chat.prefix_ids != plain_.prefix_ids


def test_a_model_without_chat_template_says_so():
    with pytest.raises(ReplicationError, match="no chat template: use template=plain"):
        build_prompt(TWO, "Why?", byte_tokenizer(True), PromptFormat(template="chat"))


def test_an_unknown_template_is_refused(smollm2):
    with pytest.raises(ReplicationError, match="unknown template 'chatty'; known: plain, chat"):
        build_prompt(TWO, "Why?", smollm2.tokenizer, PromptFormat(template="chatty"))


def test_no_passages_is_refused(smollm2):
    with pytest.raises(ReplicationError, match="passage list is empty"):
        build_prompt((), "Why?", smollm2.tokenizer)


@pytest.mark.parametrize("question", ["", "  \n\t"])
def test_an_empty_question_is_refused(smollm2, question):
    with pytest.raises(ReplicationError, match="question is empty"):
        build_prompt(TWO, question, smollm2.tokenizer)
    with pytest.raises(ReplicationError, match="question is empty"):
        without_passages(question, smollm2.tokenizer, PromptFormat())


def test_a_passage_longer_than_the_context_is_named(smollm2):
    passages = (TWO[0], Passage("Long one", "word " * 600))
    with pytest.raises(ReplicationError, match=r"6\d\d tokens of passage 2 \('Long one'\) .* 600: split the passage"):
        build_prompt(passages, "Why?", smollm2.tokenizer, context=Context(600, 600))


@given(st.integers(-3, 3))
@settings(deadline=None, max_examples=7)
def test_a_prompt_may_fill_the_context_and_no_more(smollm2, spare):
    size = len(build_prompt(TWO, "Why?", smollm2.tokenizer))
    context = Context(size + spare, size + spare)
    if spare >= 0:
        assert len(build_prompt(TWO, "Why?", smollm2.tokenizer, context=context)) == size
    else:
        with pytest.raises(ReplicationError, match=rf"{size} tokens exceed .*context of {size + spare}: use fewer"):
            build_prompt(TWO, "Why?", smollm2.tokenizer, context=context)


# --- other prompts and answers


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_the_prompt_without_passages_is_the_same_but_for_them(smollm2, template):
    style = PromptFormat(template=template)
    bare, full = without_passages("Why?", smollm2.tokenizer, style), build_prompt(TWO, "Why?", smollm2.tokenizer, style)
    assert [s.ids for s in bare.segments] == [full.segments[0].ids, full.segments[-1].ids]


def test_answers_continue_the_prompt(tokenizer):
    assert answer_ids("Ada Kress", tokenizer, PromptFormat()) == plain(tokenizer, " Ada Kress\n")
    assert answer_ids("Ada Kress", tokenizer, PromptFormat(template="chat")) == plain(tokenizer, "Ada Kress")


@given(st.lists(st.tuples(KINDS, IDS), min_size=1))
def test_chain_leaves_out_what_is_empty(parts):
    prompt = chain([*parts, ("question", (1,))])
    assert [(s.kind, s.ids) for s in prompt.segments] == [p for p in parts if p[1]] + [("question", (1,))]
    assert prompt.prefix_ids == ()


def test_reordering_moves_passages_and_leaves_the_rest_in_place():
    prompt = chain([("prefix", (1,)), ("passage", (2, 2)), ("separator", (9,)), ("passage", (3,)), ("question", (4,))])
    again = prompt.reordered([1, 0])
    assert again.ids == (1, 3, 9, 2, 2, 4)
    assert [(s.kind, s.start) for s in again.segments] == [
        ("prefix", 0),
        ("passage", 1),
        ("separator", 2),
        ("passage", 3),
        ("question", 5),
    ]


@given(IDS, IDS)
def test_first_difference_is_the_length_of_the_common_prefix(a, b):
    index = first_difference(a, b)
    assert index == first_difference(b, a)
    assert (index is None) == (a == b)
    if index is not None:
        assert a[:index] == b[:index]
        assert a[index : index + 1] != b[index : index + 1]


@given(IDS, IDS, IDS)
def test_first_difference_behind_a_common_prefix(common, a, b):
    index = first_difference(a, b)
    assert first_difference((*common, *a), (*common, *b)) == (None if index is None else len(common) + index)


def test_the_name_of_a_special_token_in_a_passage_is_text(smollm2):
    tokenizer = smollm2.tokenizer
    prompt = build_prompt((Passage("a", f"x {tokenizer.eos_token} y"),), f"q {tokenizer.eos_token}?", tokenizer)
    assert tokenizer.eos_token_id not in prompt.ids


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2]])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises(ReplicationError, match="no order of 2 passages"):
        chain([("passage", (1,)), ("passage", (2,)), ("question", (3,))]).reordered(order)
