"""MapReduce and MapRerank: what is asked, how it is combined, what is counted."""

import pytest

from replication import mapping
from replication.data import load
from replication.data.example import Passage
from replication.decode import generate
from replication.errors import ReplicationError
from replication.mapping import PIPELINES, map_reduce, map_rerank, written_score
from replication.methods import make_method
from replication.metrics.answers import first_line
from replication.model import Model, load_model
from replication.prompt import PromptFormat, build_prompt
from replication.store import MemoryStore

PASSAGES = (
    Passage("Velm", "The lighthouse at Velm was lit in 1868 by Orla Finch."),
    Passage("Lisk", "Tam Brodie founded the clock museum of Lisk."),
    Passage("Harwick", "Harwick lies north of Velm."),
)
QUESTION = "Who lit the lighthouse at Velm?"


@pytest.fixture(scope="module")
def model(tiny_directory) -> Model:
    return load_model(tiny_directory)


def alone(model: Model, passages, new_tokens: int) -> tuple[str, int]:
    """The answer from a prompt with these passages, and the prompt's length."""
    prompt = build_prompt(passages, QUESTION, model.tokenizer)
    prefill = make_method("full").prefill(model, prompt, MemoryStore())
    return first_line(generate(model, prompt.ids, prefill, new_tokens)), len(prompt)


def test_map_reduce_answers_from_the_passages_answers(model):
    result = map_reduce(model, PASSAGES, QUESTION, PromptFormat(), new_tokens=5)
    maps = [alone(model, (passage,), 5) for passage in PASSAGES]
    found = tuple(Passage(p.title, text) for p, (text, _) in zip(PASSAGES, maps, strict=True))
    text, length = alone(model, found, 5)
    assert result.text == text
    assert result.tokens == length + sum(n for _, n in maps)
    assert len(result.maps) == 3
    assert result.ttft > sum(result.maps)


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_map_rerank_sends_the_answer_with_the_highest_written_score(model, monkeypatch, template):
    written = iter(["first", "7 of 10", "second", " 93", "third", "none"])
    monkeypatch.setattr(mapping, "generate", lambda *_, **__: next(written))
    result = map_rerank(model, PASSAGES, QUESTION, PromptFormat(template))
    assert result.text == "second"
    assert result.ttft == pytest.approx(sum(result.maps))


def test_map_rerank_breaks_ties_by_the_answers_likelihood_and_passes_over_blank_ones(model, monkeypatch):
    asked = []
    real = mapping._judged

    def judged(*args):
        likelihood = real(*args)[1]
        asked.append((args[3], likelihood))
        return 100 if args[3] == "" else 50, likelihood

    monkeypatch.setattr(mapping, "_judged", judged)
    monkeypatch.setattr(mapping, "first_line", lambda text: "" if not asked else f"answer {len(asked)}")
    result = map_rerank(model, PASSAGES, QUESTION, PromptFormat())
    assert [text for text, _ in asked] == ["", "answer 1", "answer 2"]
    assert result.text == max(asked[1:], key=lambda pair: pair[1])[0]


@pytest.mark.parametrize(
    ("text", "score"),
    [("100", 100), (" 7\n", 7), ("85%", 85), ("0", 0), ("", -1), ("high", -1), ("101", -1), ("2024", -1), ("-5", -1)],
)
def test_written_scores(text, score):
    assert written_score(text) == score


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_needs_passages(model, name):
    with pytest.raises(ReplicationError, match="the passage list is empty"):
        PIPELINES[name](model, (), QUESTION, PromptFormat())


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_on_the_real_model(smollm2, name):
    example = load("synthetic", n=1, passages=2).examples[0]
    result = PIPELINES[name](smollm2, example.passages, example.question, PromptFormat())
    assert result.text
    assert "\n" not in result.text
    assert result.ttft > max(result.maps) > 0
