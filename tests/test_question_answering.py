"""Questions put to a model: greedy, the same alone as in a batch, ended where the model ends, and scored."""

import pytest
import torch

from replication.errors import ReplicationError
from replication.model import load_model
from replication.question_answering import QuestionAnswering

QUESTIONS = ["Why?", "How do I reset my password?", "Is the API of the annual plan rate limited on Sundays?"]


@pytest.fixture(scope="module")
def tiny_qa(tiny_directory) -> QuestionAnswering:
    return QuestionAnswering(load_model(tiny_directory), longest=12)


def test_an_answer_in_a_batch_is_the_answer_alone(tiny_qa):
    together = tiny_qa.answers(QUESTIONS)
    assert together == [tiny_qa.answers([question])[0] for question in QUESTIONS]
    assert len(set(together)) == len(QUESTIONS)


def test_an_answer_is_the_likeliest_token_at_every_step(tiny_qa):
    ids = list(tiny_qa.prompt(QUESTIONS[1]))
    begun = len(ids)
    for _ in range(tiny_qa.longest):
        ids.append(int(tiny_qa.model.lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert tiny_qa.answers([QUESTIONS[1]]) == [tiny_qa.model.tokenizer.decode(ids[begun:])]


def test_an_answer_ends_where_the_model_ends_it_unless_it_must_be_longer(smollm2):
    model = QuestionAnswering(smollm2, longest=24)
    ended, forced = model.answers(["What is 2 + 2?"])[0], model.answers(["What is 2 + 2?"], shortest=24)[0]
    assert forced.startswith(ended)
    lengths = [len(smollm2.tokenizer(text)["input_ids"]) for text in (ended, forced)]
    assert lengths[0] < 24 <= lengths[1] + 2  # tokenised again, a text can come out a little shorter


def test_the_likelihood_is_that_of_the_answers_tokens_alone(tiny_qa):
    answer = "Send it back."
    prompt = tiny_qa.prompt(QUESTIONS[0])
    ids = tiny_qa.model.tokenizer(answer, add_special_tokens=False)["input_ids"]
    both = torch.tensor([[*prompt, *ids]])
    labels = both.clone()
    labels[0, : len(prompt)] = -100
    expected = tiny_qa.model.lm(input_ids=both, labels=labels).loss.item()
    assert tiny_qa.nll(QUESTIONS[0], answer) == pytest.approx(expected, rel=1e-5)


def test_an_empty_answer_has_no_likelihood(tiny_qa):
    with pytest.raises(ReplicationError, match="empty answer"):
        tiny_qa.nll(QUESTIONS[0], "")


def test_a_model_without_a_chat_template_is_asked_in_plain_text(tiny_directory):
    model = load_model(tiny_directory)
    chat = model.tokenizer.decode(QuestionAnswering(model).prompt("Why?"))
    model.tokenizer.chat_template = None
    plain = model.tokenizer.decode(QuestionAnswering(model).prompt("Why?"))
    assert chat.endswith("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert plain == "Question: Why?\nAnswer:"
