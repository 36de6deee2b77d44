"""The side-by-side experiment: what each system may and may not serve, and the run from config to figure."""

import json
import shutil
from dataclasses import replace

import pytest
from embedders import WordEmbedder

from experiments import side_by_side
from experiments.side_by_side import Config, bills, systems
from experiments.side_by_side_prompts import Conversations, marked, reply_ids
from experiments.side_by_side_summary import EXACT, FULL, PROMPT_CACHE, summarise
from experiments.side_by_side_systems import Responses, Semantic, Served
from replication.caches.provider.request import tokenizer_of
from replication.caches.request import kv_bytes_per_token
from replication.data.stream import stream
from replication.errors import ReplicationError
from replication.model import load_model
from replication.records import RunFolder, read_records, without_seconds
from replication.runner import check_runs, recorded, run_one

SMALL = {
    "n": 12,
    "seed": 3,
    "tenants": 2,
    "documents": 3,
    "passages": 2,
    "repeats": 0.2,
    "paraphrases": 0.1,
    "traps": 0.2,
    "chats": 0.3,
    "new_tokens": 3,
    "uncached": 2,
    "budget_mb": 8,
}


@pytest.fixture(scope="module", autouse=True)
def words():
    """A small embedder in the place of the real one, whose loading takes longer than everything here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "load_embedder", lambda device: WordEmbedder())
        yield


@pytest.fixture(scope="module")
def config(tiny_directory) -> Config:
    return Config(model=tiny_directory, **SMALL)


@pytest.fixture(scope="module")
def folder(config, tmp_path_factory):
    return run_one("side_by_side", config, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def records(folder) -> list[dict]:
    return [r for r in read_records(folder) if r["kind"] == "request"]


@pytest.fixture(scope="module")
def summary(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def model(tiny_directory):
    return load_model(tiny_directory)


@pytest.fixture(scope="module")
def arrivals(config, model):
    """The stream's requests as they come in, with full prefill's replies as the history of its chats."""
    talk, full = (
        Conversations(model, config.api_model, config.new_tokens, config.gap),
        systems(config, model, None)[FULL],
    )
    found = []
    for request in stream(config.n, config.seed, config):
        found.append(talk.arrival(request))
        talk.replied(found[-1], full.answer(found[-1]).ids)
    return found


# the run


def test_an_interrupted_run_ends_with_the_same_records(config, folder, tmp_path):
    whole = read_records(folder)
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    shutil.copy(folder / "provenance.json", tmp_path)
    (tmp_path / "records.jsonl").write_text("".join(lines[:7]) + lines[7][:30])
    side_by_side.run(config, RunFolder(tmp_path, recorded(config)))
    again = read_records(tmp_path)
    assert again[:7] == whole[:7]
    assert without_seconds(again) == without_seconds(whole)
    assert (folder / "figure.png").stat().st_size > 10_000


def test_what_is_finished_is_not_answered_again(config, folder, monkeypatch):
    monkeypatch.setattr(side_by_side, "_warm_up", lambda *_: pytest.fail("it ran again"))
    side_by_side.run(config, RunFolder(folder, recorded(config)))


def test_exact_systems_answer_as_full_prefill_does(records):
    for record in records:
        served = record["served"]
        for name in ("no-kv-cache", "prefix", "response", "response+prefix"):
            if name in served:
                assert served[name]["text"] == served[FULL]["text"]
        assert served["prefix"]["kl_first"] < 1e-6


def test_a_response_is_served_to_the_same_bytes_alone(records):
    for record in records:
        served = record["served"]["response"]
        assert (served["source"] == "response") == (record["asked"] == "repeat")


def test_a_prefix_cache_finds_the_history_of_a_chat_and_chunks_find_passages_in_any_order(summary):
    assert summary["asked"]["chat"]["prefix"]["prefilled_share"]["mean"] < 0.3
    assert summary["asked"]["chat"]["shared-prefix"]["prefilled_share"]["mean"] > 0.05
    reordered = summary["reordered"]
    assert reordered["shared-prefix"]["prefilled_share"]["mean"] < reordered["prefix"]["prefilled_share"]["mean"]


def test_a_stack_prefills_no_more_than_its_parts(records):
    names = records[1]["served"]  # the first request is also answered without KV cache
    tokens = {name: sum(r["served"][name]["prefilled"] for r in records) for name in names}
    assert tokens["response+prefix"] <= min(tokens[name] for name in EXACT)
    assert tokens["response+semantic+prefix"] <= tokens["response+prefix"]


def test_kept_bytes_stay_within_the_budget(config, records):
    for record in records:
        for name, served in record["served"].items():
            assert 0 <= served.get("bytes", 0) <= 8 * 2**20 + 10_000 * (name not in EXACT)
    last = records[-1]["served"]
    assert last[FULL]["bytes"] == 0 < last["response"]["bytes"] < last["semantic"]["bytes"] < last["prefix"]["bytes"]


def test_a_bill_has_every_token_once_and_none_for_what_was_served_from_a_store(records):
    for record in records:
        served = record["served"]
        total = sum(served[FULL]["usage"].values())
        assert sum(served[PROMPT_CACHE]["usage"].values()) == total
        assert served[FULL]["usage"]["rest"] == total
        for name in ("response", "semantic", "response+prefix"):
            assert (served[name]["dollars"] == 0) == (served[name]["source"] != "model")


# single systems


def test_tenants_find_nothing_of_each_other(config, model, arrivals):
    first = next(a for a in arrivals if a.request.kind == "new")
    other = replace(first, request=replace(first.request, tenant="another"))
    for name, system in systems(config, model, WordEmbedder()).items():
        cold, foreign, warm = system.answer(first), system.answer(other), system.answer(first)
        assert foreign.source == "model"
        assert foreign.prefilled == cold.prefilled
        assert foreign.text == cold.text
        if name not in ("no-kv-cache", FULL):
            assert warm.prefilled < cold.prefilled
    charged = bills(config, tokenizer_of(model.tokenizer))[PROMPT_CACHE]
    assert [charged.charge(a)["usage"]["read"] for a in (first, other)] == [0, 0]


def test_a_chat_extends_its_last_turn_token_by_token(arrivals):
    by_id = {a.request.id: a for a in arrivals}
    further = [a for a in arrivals if a.request.follows]
    assert further
    for arrival in further:
        before = by_id[arrival.request.follows]
        assert arrival.prompt.ids[: len(before.prompt)] == before.prompt.ids
        assert arrival.body["messages"][: len(before.body["messages"])] == before.body["messages"]
        assert len(arrival.body["messages"]) == 2 * len(arrival.request.questions) - 1


def test_markers_stand_behind_instructions_and_passages_and_change_nothing_else(arrivals):
    for arrival in arrivals:
        body = marked(arrival.body)
        blocks = [*body["system"], *body["messages"][0]["content"]]
        at = [i for i, block in enumerate(blocks) if "cache_control" in block]
        assert at == [0, len(arrival.request.passages)]
        text = json.dumps(body).replace(', "cache_control": {"type": "ephemeral"}', "")
        assert text == json.dumps(arrival.body)


def test_the_provider_reads_a_chats_history(config, model, arrivals):
    rules = replace(config, api_model="claude-fable-5", sentences=20)
    requests = [r for r in stream(40, rules.seed, rules) if r.tenant == "tenant-0"]
    turn = next(r for r in requests if r.follows)
    talk = Conversations(model, rules.api_model, 3, gap=20)
    charged = bills(rules, tokenizer_of(model.tokenizer))[PROMPT_CACHE]
    usage = {}
    for request in requests[: requests.index(turn) + 1]:
        arrival = talk.arrival(request)
        talk.replied(arrival, (1, 2))
        usage[request.id] = charged.charge(arrival)["usage"]
    before = usage[turn.follows]
    assert usage[turn.id]["read"] == before["read"] + before["written"] > 512


def test_a_reply_ends_with_its_first_line(model):
    ids = tuple(model.tokenizer(" Ada Kress\n\nQuestion: Who?")["input_ids"])
    assert model.tokenizer.decode(reply_ids(model.tokenizer, ids)) == " Ada Kress"
    assert reply_ids(model.tokenizer, ids[:2]) == ids[:2]


class Counting:
    """Answers with how often it was asked, in no time; stored: whether its answers come from a store."""

    nbytes = 0

    def __init__(self, source: str = "model"):
        self.asked, self.source = 0, source

    def answer(self, arrival) -> Served:
        self.asked += 1
        return Served(str(self.asked), self.source, arrival.request.id, ttft=1.0, total=2.0)


def test_a_semantic_hit_serves_what_was_made_for_another_request(arrivals):
    first = next(a for a in arrivals if a.request.kind == "new")
    near = replace(first, request=replace(first.request, id="near", questions=(first.request.question + " not",)))
    far = replace(first, request=replace(first.request, id="far", questions=("unlike",)))
    cache = Semantic(Counting(), WordEmbedder(), threshold=0.8)
    miss, hit, other = (cache.answer(a) for a in (first, near, far))
    assert (miss.source, hit.source, other.source) == ("model", "semantic", "model")
    assert (hit.text, hit.made_for, hit.prefilled) == ("1", first.request.id, 0)
    assert miss.ttft > 1 > hit.ttft == hit.total
    further = replace(first.request, questions=(*first.request.questions, "And then?"), follows=first.request.id)
    assert cache.answer(replace(first, request=further)).source == "model"
    assert 2 * 4 * 8 < cache.nbytes < 1000


def test_what_came_from_a_store_is_not_stored_again(arrivals):
    for make in (Responses, lambda behind: Semantic(behind, WordEmbedder(), 0.9)):
        for source, asked in (("model", 1), ("semantic", 2)):
            behind = Counting(source)
            cache = make(behind)
            assert cache.answer(arrivals[0]).text == "1"
            assert cache.answer(arrivals[0]).text == str(asked)
            assert behind.asked == asked


# the summary


def record(id: str, meaning: str, text: str, **others) -> dict:
    """A request that full prefill answers with `text`; others: system -> (text, id of the request it was made for)."""
    names = {FULL: (text, id), "prefix": (text, id), "response": (text, id), "cacheblend": (text, id), **others}
    served = {
        name: {"source": "model", "text": t, "made_for": made, "prefilled": 10.0, "bytes": 5}
        for name, (t, made) in {**names, "response+prefix": (text, id)}.items()
    }
    seconds = {name: {"ttft": 1.0, "total": 2.0, "after": 0.0} for name in served}
    facts = {"kind": "request", "example": id, "asked": "new", "near": None, "seen": True, "answers": [text]}
    return {**facts, "meaning": meaning, "tokens": 20, "threads": 1, "served": served, "seconds": seconds}


def test_only_another_questions_answer_is_wrong():
    found = summarise(
        [
            record("a", "x", "one", semantic=("one", "a")),
            record("b", "y", "two", semantic=("one", "a")),  # another question's answer, and another answer
            record("c", "y", "one", semantic=("one", "a")),  # another question's, but the same answer
            record("d", "y", "three", semantic=("two", "b")),  # the same question, answered in another way
            record("e", "z", "The river Brel.", semantic=("brel", "a")),  # the same answer in fewer words
            record("f", "z", "Brel", semantic=("", "a")),
            record("g", "z", "Brelwick", semantic=("Brel", "e")),
        ],
        None,
    )["systems"]["semantic"]
    counts = [round(7 * found[key]["mean"], 6) for key in ("wrong", "changed", "other_question", "correct")]
    assert counts == [2, 2, 4, 2]


def test_ratios_are_to_full_prefill_on_the_same_requests():
    records = [record(str(i), "x", "t", semantic=("t", str(i))) for i in range(4)]
    for number, r in enumerate(records):
        r["served"][FULL]["prefilled"] = 20.0
        r["seconds"]["semantic"] = {"ttft": 0.5, "total": 1.0, "after": 1.0}
        if number < 2:
            r["served"]["no-kv-cache"] = {**r["served"][FULL], "prefilled": 60.0}
            r["seconds"]["no-kv-cache"] = {"ttft": 1.0, "total": 6.0, "after": 0.0}
    found = summarise(records, None)
    semantic, none = found["systems"]["semantic"], found["systems"]["no-kv-cache"]
    assert [semantic[key]["mean"] for key in ("ttft_ratio", "total_ratio", "busy_ratio", "prefilled_ratio")] == [
        0.5,
        0.5,
        1.0,
        0.5,
    ]
    assert (none["n"], none["total_ratio"]["mean"], none["prefilled_ratio"]["mean"]) == (2, 3, 3)
    assert found["leaders"]["ttft_ratio"] == ["semantic"]
    assert found["leaders"]["bytes"] == ["prefix", "cacheblend", "response", "semantic"]
    assert found["stack_over_best_exact"]["mean"] == 1


# bad settings


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": "hotpotqa"},
        {"new_tokens": 1},
        {"uncached": 0},
        {"n": 0},
        {"ratio": 0},
        {"threshold": 1.5},
        {"on": "yesterday"},
        {"api_model": "claude-mythos-preview"},
        {"traps": 1.0},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ReplicationError):
        Config(**settings)


def test_what_would_stop_a_run_is_said_before(config, tmp_path):
    with pytest.raises(ReplicationError, match="unknown model"):
        check_runs([("side_by_side", replace(config, model="smollm3"))], tmp_path)
    with pytest.raises(ReplicationError, match="lower passages"):
        run_one("side_by_side", replace(config, sentences=200), tmp_path)


def test_a_budget_is_in_bytes_of_k_and_v(config, model, arrivals):
    block = config.block_size * kv_bytes_per_token(model.lm.config, model.dtype)
    system = side_by_side.PrefixReuse(model, 3, 10 * block, config.block_size)
    for arrival in arrivals[:3]:
        system.answer(arrival)
    assert system.nbytes == 10 * block
