"""The experiments on caches that store answers: run twice, taken up again, and the arithmetic of their summaries."""

import json

import numpy as np
import pytest
from conftest import tiny_lm
from embedders import WordEmbedder
from transformers import AutoTokenizer

from experiments import response_cache, semantic_answers, semantic_cache, semantic_index
from experiments.semantic_answers import ask_cache, summarise_answers
from experiments.semantic_common import load_readable
from experiments.semantic_index import grown
from replication.caches.embedding import Embedder, load_embedder
from replication.caches.index import unit
from replication.caches.response import is_deterministic, request_key
from replication.data.pairs import Pair
from replication.data.request_log import LOGS, MOONCAKE_FILE, load_log
from replication.data.tau_bench import FILE as TAU_BENCH_FILE
from replication.embedded import embedded_directory
from replication.errors import ReplicationError
from replication.records import RunFolder, read_records, without_seconds
from replication.runner import check_runs, find_experiments, recorded, run_one


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> str:
    """A directory with a tiny random model and the real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-judge"
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    tiny_lm("llama", vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def configs(judge) -> dict:
    return {
        "semantic_cache": semantic_cache.Config(n=24, judge=judge, judged=12, answered=20, timed=1, answer_tokens=2),
        "semantic_index": semantic_index.Config(
            n=40, sizes=(30, 200), queries=20, timed=3, rounds=2, efforts=(1, 32), threshold=0.8
        ),
        "response_cache": response_cache.Config(n=300),
    }


NAMES = ("semantic_cache", "semantic_index", "response_cache")


@pytest.mark.parametrize("name", NAMES)
def test_runs_twice_with_the_same_records_and_draws_its_figure(configs, tmp_path, name):
    config = configs[name]
    check_runs([(name, config)], tmp_path / "a")
    first, second = run_one(name, config, tmp_path / "a"), run_one(name, config, tmp_path / "b")
    assert without_seconds(read_records(first)) == without_seconds(read_records(second))
    assert (first / "figure.png").stat().st_size > 10_000
    assert "?" not in (first / "records.jsonl").read_text()  # no question of the data
    names = {"figure.pdf", "figure.png", "provenance.json", "records.jsonl", "summary.json"}
    assert {file.name for file in first.iterdir()} == names  # no answers


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_run_ends_with_the_same_records(configs, tmp_path, name):
    config, run = configs[name], find_experiments()[name].run
    run(config, RunFolder(tmp_path, recorded(config)))
    file = tmp_path / "records.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    stable = sorted(json.dumps(record) for record in without_seconds(read_records(file)))
    for kept in (len(whole) // 2, len(whole) - 1):
        file.write_text("".join(whole[:kept]) + whole[kept][:20])
        run(config, RunFolder(tmp_path, recorded(config)))
        assert sorted(json.dumps(record) for record in without_seconds(read_records(file))) == stable


def test_results_hold_no_path_of_the_judge(configs):
    assert recorded(configs["semantic_cache"])["judge"] == "tiny-judge"


@pytest.mark.parametrize("settings", [{"dataset": "qqq"}, {"n": 10**6}, {"model": "nowhere"}, {"judge": "smollm3"}])
def test_what_would_stop_a_run_is_said_before(tmp_path, settings):
    with pytest.raises(ReplicationError):
        check_runs([("semantic_cache", semantic_cache.Config(**settings))], tmp_path)


def test_pairs_that_an_embedder_would_cut_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(Embedder, "limit", 12)
    embedder = load_embedder()
    loaded = load_readable(semantic_cache.Config(n=20), embedder)
    assert 0 < len(loaded.pairs) == 20 - loaded.provenance["too_long"] < 20
    assert max(embedder.lengths([text for pair in loaded.pairs for text in (pair.stored, pair.asked)])) <= 12


# semantic_cache


def pair(number: int, same: bool, score: float, **checks) -> dict:
    found = {"polarity": True, "content": True, "judge": 0.0} | checks
    return {
        "kind": "pair",
        "example": str(number),
        "category": "paraphrase" if same else "negation",
        "same": same,
        "score": score,
        "crowd_score": score,
        "own": True,
        **found,
    }


def answer(label: str, score: float, served: float, fresh: float) -> dict:
    """A hit whose served answer has the given NLL behind the asked question, and the model's own another one."""
    category = "paraphrase" if label == "right" else "negation"
    observed = {"label": label, "differs": served != fresh, "f1": 0.5, "nll_served": served, "nll_fresh": fresh}
    return {"kind": "answer", "category": category, "score": score, **observed}


@pytest.fixture
def records() -> list[dict]:
    """Four pairs with one answer, four traps of which the gate refuses the nearest two, and what else is recorded."""
    rows = [pair(i, True, score) for i, score in enumerate((0.99, 0.95, 0.9, 0.6))]
    traps = ((0.97, False), (0.92, False), (0.91, True), (0.5, True))
    rows += [pair(10 + i, False, score, polarity=passes) for i, (score, passes) in enumerate(traps)]
    article = [
        {"kind": "article", "pair": name, "score": published - 0.001, "published": published}
        for name, (_, _, published) in semantic_cache.ARTICLE.items()
    ]
    seconds = {"embed": 0.01, "judge": 0.1, "answer": 1.0}
    answers = [answer("right", 0.99, 1.0, 1.0), answer("right", 0.8, 2.0, 1.0), answer("wrong", 0.9, 4.0, 1.0)]
    timing = {"kind": "timing", "round": 0, "seconds": seconds}
    return [*article, *rows, *answers, {"kind": "answer", "category": "scope", "score": 0.5}, timing]


@pytest.fixture
def summary(records) -> dict:
    return semantic_cache.summarise(records, semantic_cache.Config())


def test_rates_count_right_and_wrong_answers_apart(summary):
    point = summary["curves"]["plain"]["0.9"]
    assert (point["served"]["mean"], point["wrong"]["mean"]) == (0.75, 0.75)
    assert (point["hit_rate"]["mean"], point["wrong_of_hits"]["mean"]) == (0.75, 0.5)
    assert summary["by_category"]["0.95"]["negation"]["hits"]["mean"] == 0.25


def test_a_higher_threshold_never_raises_a_rate(summary):
    for curve in summary["curves"].values():
        for key in ("served", "wrong", "hit_rate"):
            rates = [point[key]["mean"] for point in curve.values()]
            assert rates == sorted(rates, reverse=True)


def test_the_best_threshold_keeps_its_budget_and_lower_ones_do_not(summary):
    best = summary["separation"]["best"]["0.01"]
    assert 0.97 < best["threshold"] < 0.97001
    assert (best["wrong"]["mean"], best["served"]["mean"]) == (0, 0.25)
    assert summary["separation"]["auc"] == pytest.approx((4 + 3 + 1 + 1) / 16)


def test_remedies_are_compared_at_an_equal_hit_rate(summary):
    remedy = summary["remedies"]["polarity"]
    assert remedy["check"]["served"] == remedy["plain"]["served"]
    assert remedy["plain"]["threshold"] == 0.9
    assert (remedy["check"]["wrong"]["mean"], remedy["plain"]["wrong"]["mean"]) == (0.25, 0.75)
    assert remedy["wrong_difference"]["mean"] == -0.5
    assert summary["remedies"]["judge"]["check"]["served"]["mean"] == 0.75


def test_cost_counts_the_embedding_of_every_request(summary):
    assert summary["cost"]["break_even_hit_rate"] == pytest.approx(0.01)
    assert summary["cost"]["per_request"]["0.9"] == pytest.approx(0.01 + 0.25)


def test_the_articles_pairs_are_compared_with_what_it_prints(summary):
    assert summary["article"]["largest_difference"] == pytest.approx(0.001)
    assert summary["article"]["paraphrase_minus_negation"] == pytest.approx(0.009)


def test_pairs_of_one_kind_alone_are_refused(tmp_path, judge):
    with pytest.raises(ReplicationError, match="raise n"):
        run_one("semantic_cache", semantic_cache.Config(n=1, judge=judge), tmp_path)


# semantic_cache, the answers


def test_wrong_hits_are_counted_by_label_and_observed_beside_it(summary):
    real = summary["real"]
    loose, strict = real["thresholds"]["0.75"], real["thresholds"]["0.95"]
    assert (loose["hit_rate"]["mean"], loose["wrong_of_hits"]["mean"]) == (0.75, pytest.approx(1 / 3))
    assert (strict["hit_rate"]["mean"], strict["wrong_of_hits"]["mean"]) == (0.25, 0)
    right, wrong = real["by_label"]["right"], real["by_category"]["negation"]
    assert (right["differs"]["mean"], right["preferred"]["mean"], right["preference"]["mean"]) == (0.5, 0.5, 0.5)
    assert (wrong["label"], wrong["differs"]["mean"], wrong["preference"]["mean"]) == ("wrong", 1, 3)
    assert real["wrong_over_right"]["mean"] == 2.5
    assert real["by_label"]["repeat"]["preference"]["n"] == 0


class Echo:
    """A model whose answer names the question it answers, and which finds longer answers less likely."""

    def __init__(self):
        self.asked = []

    def answers(self, questions: list[str]) -> list[str]:
        self.asked += questions
        return [f"answer to {question}" for question in questions]

    def nll(self, question: str, answer: str) -> float:
        return float(len(answer))


ASKED = [  # stored, asked, same: a word embedder does not see the order of words
    Pair("right", "a b", "b a", True, "paraphrase"),
    Pair("wrong", "c d", "d c", False, "swap"),
    Pair("repeat", "e f", "a b", False, "swap"),
    Pair("unlabelled", "g h", "d c", True, "paraphrase"),
    Pair("miss", "i j", "k", True, "paraphrase"),
]


def test_a_hit_is_labelled_by_whose_question_was_the_nearest(tmp_path):
    folder = RunFolder(tmp_path, {})
    ask_cache(ASKED, WordEmbedder(), Echo(), folder)
    assert {r["example"]: r.get("label", "miss") for r in folder.records} == {p.id: p.id for p in ASKED}
    assert {r["example"]: r["differs"] for r in folder.records if "label" in r} == {
        "right": True,
        "wrong": True,
        "repeat": False,
        "unlabelled": True,
    }


def test_a_stopped_run_keeps_the_answers_that_are_stored(tmp_path, monkeypatch):
    model, folder = Echo(), RunFolder(tmp_path, {})
    with monkeypatch.context() as stopped:
        stopped.setattr(semantic_answers, "token_f1", None)
        with pytest.raises(TypeError):
            ask_cache(ASKED, WordEmbedder(), model, folder)
    hits = [pair.asked for pair in ASKED[:-1]]
    assert model.asked == [pair.stored for pair in ASKED] + hits
    ask_cache(ASKED, WordEmbedder(), model, folder)
    assert model.asked == [pair.stored for pair in ASKED] + 2 * hits
    counts = summarise_answers(folder.records)["thresholds"]["0.75"]["counts"]
    assert counts == dict.fromkeys(semantic_answers.LABELS, 1)


# semantic_index


def test_a_grown_set_begins_with_the_real_vectors_and_extends_with_size(monkeypatch):
    monkeypatch.setattr(semantic_index, "PIECE", 16)
    real = unit(np.random.default_rng(0).normal(size=(20, 16)))
    sets = {size: np.concatenate(list(grown(real, size, seed=0))) for size in (7, 20, 21, 50, 53)}
    for size, vectors in sets.items():
        assert vectors.shape == (size, 16)
        assert np.array_equal(vectors, sets[53][:size])
    assert np.array_equal(sets[20], real)
    np.testing.assert_allclose(np.linalg.norm(sets[53], axis=1), 1, atol=1e-5)
    # a mixture lies nearer to a real one than a random direction does
    assert (sets[53][20:] @ real.T).max(1).min() > 0.5


def test_more_entries_than_the_memory_holds_are_refused_before_the_work(tmp_path):
    config = semantic_index.Config(n=40, sizes=(10, 10**9))
    with pytest.raises(ReplicationError, match="1,000,000,000 entries take 3"):
        run_one("semantic_index", config, tmp_path)


def test_each_request_is_embedded_once_and_the_second_of_a_question_hits(configs, tmp_path):
    config = configs["semantic_index"]
    folder = RunFolder(tmp_path, recorded(config))
    semantic_index.run(config, folder)
    for found in semantic_index.summarise(folder.records, config)["requests"].values():
        assert found["embeddings_per_request"] == 1
        assert found["hit"]["n"] >= found["miss"]["n"] == found["store"]["n"] > 0


# response_cache


@pytest.mark.parametrize(("field", "change", "value", "can_change"), response_cache.SENSITIVITY)
def test_the_key_tells_apart_what_can_change_the_answer_and_nothing_else(field, change, value, can_change):
    request = response_cache.changed(field, value)
    assert (request_key(request) != request_key(response_cache.BASE)) == can_change
    assert is_deterministic(request) == (field != "temperature")


def test_repeats_are_counted_from_the_second_on(tmp_path, monkeypatch):
    def log(seed, data_dir):
        return [response_cache.LoggedRequest(g, c) for g, c in (("x", "a"), ("x", "b"), ("y", "a"), ("y", "a"))], {}

    monkeypatch.setitem(LOGS, "made", log)
    folder = run_one("response_cache", response_cache.Config(dataset="made"), tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["all"]["repeats"]["mean"] == 0.5
    assert [summary["groups"][g]["repeats"]["mean"] for g in "xy"] == [0, 1]
    assert (summary["wrong_hits"], summary["sensitivity"]["missed"], summary["sensitivity"]["needless"]) == (0, 0, 0)


def test_every_call_of_an_agent_is_a_request_with_all_before_it(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant")
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
    (tmp_path / TAU_BENCH_FILE).write_text(json.dumps([{"traj": messages}] * 2))
    requests = load_log("tau-bench", data_dir=tmp_path).requests
    assert [(r.group, len(r.content)) for r in requests] == [("call 1", 2), ("call 2", 4)] * 2


def test_a_log_that_is_not_there_or_damaged_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("REPLICATION_DATA", raising=False)
    for name, file in (("tau-bench", TAU_BENCH_FILE), ("mooncake", MOONCAKE_FILE)):
        with pytest.raises(ReplicationError, match="--data-dir"):
            load_log(name)
        with pytest.raises(ReplicationError, match="No such file"):
            load_log(name, data_dir=tmp_path)
        (tmp_path / file).write_text('{"a": 1}')
        with pytest.raises(ReplicationError, match=file):
            load_log(name, data_dir=tmp_path)
