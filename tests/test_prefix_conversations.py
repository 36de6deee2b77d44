"""Conversations as prompts, their turns, and what a prefix cache finds of them, against a count by hand."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from experiments import prefix_traces
from experiments.prefix_conversations import order, prompts_of, sharing
from replication.data.tau_bench import FILE, load_conversations
from replication.errors import ReplicationError
from replication.records import RunFolder
from replication.runner import check_runs, recorded, result_folder, run_one

LOOK_UP = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"flight": "HAT001"}'}}


def conversation(*said: str) -> list[dict]:
    """A policy, and a customer and an agent in turns; the agent's first answer is a call of a tool."""
    messages = [{"role": "system", "content": "You are an airline's agent. Look up flights before you answer. " * 3}]
    for turn, text in enumerate(said):
        messages.append({"role": "user", "content": text})
        if turn == 0:
            messages.append({"role": "assistant", "content": None, "tool_calls": [LOOK_UP]})
            messages.append({"role": "tool", "tool_call_id": "1", "name": "look_up", "content": '{"seats": 3}'})
        messages.append({"role": "assistant", "content": f"Answer {turn} to {text}"})
    return messages


CONVERSATIONS = [
    conversation("Are there seats on HAT001?", "Book one, please."),
    conversation("Are there seats on HAT001?", "Thank you.", "Bye."),
    conversation("Cancel my flight."),
]


@pytest.fixture(scope="module")
def config(tiny_directory, tmp_path_factory) -> prefix_traces.Config:
    folder = tmp_path_factory.mktemp("conversations")
    unanswered = CONVERSATIONS[0][:2]
    (folder / FILE).write_text(json.dumps([{"traj": messages} for messages in (*CONVERSATIONS, unanswered)]))
    return prefix_traces.Config(
        model=tiny_directory,
        dataset="tau-bench",
        data_dir=str(folder),
        capacities=(0.1, 1.0),
        block_sizes=(4, 16),
        at_once=(1, 2),
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return run_one("prefix_traces", config, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def prompts(config):
    return prompts_of(CONVERSATIONS, AutoTokenizer.from_pretrained(config.model))


def test_a_prompt_is_the_templates_and_every_call_extends_the_last(prompts, config):
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    assert [len(calls) for calls in prompts] == [3, 4, 2]
    for calls in prompts:
        for shorter, longer in pairwise(calls):
            assert longer[: len(shorter)] == shorter
    text = tokenizer.decode(prompts[0][1])
    assert text == tokenizer.apply_chat_template(
        [
            *CONVERSATIONS[0][:2],
            {"role": "assistant", "content": f"<tool_call>\n{json.dumps(LOOK_UP['function'])}\n</tool_call>"},
            CONVERSATIONS[0][3],
        ],
        tokenize=False,
        add_generation_prompt=True,
    )


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(1, 4))
def test_every_call_comes_once_in_turn_and_no_more_talk_at_once_than_may(lengths, at_once):
    conversations = [[()] * length for length in lengths]
    turns = list(order(conversations, at_once))
    assert Counter(turns) == Counter((n, call) for n, length in enumerate(lengths) for call in range(length))
    for number, length in enumerate(lengths):
        assert [call for n, call in turns if n == number] == list(range(length))
    for at in range(len(turns)):
        open_ones = {n for n, call in turns[:at] if call + 1 < lengths[n]} & {n for n, _ in turns[at:]}
        assert len(open_ones) <= at_once


def common(a: tuple, b: tuple) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("size", [1, 4, 16])
def test_what_is_found_is_the_longest_common_prefix_in_whole_blocks(prompts, size):
    records = list(sharing(prompts, size))
    before: list[tuple[int, tuple]] = []
    for number, (calls, record) in enumerate(zip(prompts, records, strict=True)):
        found = {"all": [], "within": []}
        for ids in calls:
            for kind, others in (("all", before), ("within", [(n, o) for n, o in before if n == number])):
                longest = max((common(ids, other) for _, other in others), default=0)
                found[kind].append(min(longest // size * size, len(ids) - 1))
            before.append((number, ids))
        assert (record["all"], record["within"]) == (sum(found["all"]), sum(found["within"]))
        assert record["all_first"] == found["all"][0]
        assert (record["tokens"], record["first"]) == (sum(map(len, calls)), len(calls[0]))
    assert records[0]["all_first"] == 0
    assert records[1]["all_first"] > records[2]["all_first"] > 0


def test_the_summary_adds_up(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["conversations"], summary["calls"], summary["block"]) == (3, 9, 4)
    for shares in summary["saved"].values():
        assert shares["within"]["mean"] + shares["across"]["mean"] == pytest.approx(shares["all"]["mean"], rel=1e-4)
    assert summary["saved"]["4"]["all"]["mean"] > summary["saved"]["16"]["all"]["mean"] > 0.3
    assert summary["large_blocks"]["mean"] < 0
    alone, turns = (summary["at_once"][n] for n in ("1", "2"))
    assert alone["1"]["hit_rate"] == turns["1"]["hit_rate"] > alone["0.1"]["hit_rate"]
    assert (finished / "figure.png").stat().st_size > 10_000


def test_resumes_to_the_same_records(config, finished, tmp_path):
    whole = RunFolder(finished, recorded(config)).records
    copy = result_folder("prefix_traces", config, tmp_path)
    shutil.copytree(finished, copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    for kept in (3, len(lines) - 2):
        (copy / "records.jsonl").write_text("".join(lines[:kept]) + lines[-1][:20])
        run_one("prefix_traces", config, tmp_path)
        assert RunFolder(copy, recorded(config)).records == whole


def test_what_cannot_be_shown_or_read_is_refused_before_the_run(config, tmp_path, tiny_directory):
    for text, message in (("[]", "is empty"), ('[{"traj": [{}]}]', "no list of trajectories"), ("{", "no list")):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ReplicationError, match=message):
            load_conversations(tmp_path)
    shutil.copytree(tiny_directory, tmp_path / "strict")
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory)
    tokenizer.chat_template = "{{ raise_exception('no tools here') }}"
    tokenizer.save_pretrained(tmp_path / "strict")
    with pytest.raises(ReplicationError, match="cannot show tools' messages"):
        check_runs([("prefix_traces", replace(config, model=str(tmp_path / "strict")))], tmp_path)
    for settings in ({"dataset": "tau-bank"}, {"block_sizes": ()}, {"at_once": (0,)}):
        with pytest.raises(ReplicationError):
            replace(config, **settings)
