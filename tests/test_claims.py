"""Claims: criteria, verdicts, the table, and every kind of problem that --check must find. Numbers are invented."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import experiments
from replication.claims import Claim, Outcome, Row, evaluate, load_claims, parse_criterion, read_claims
from replication.claims_check import check
from replication.claims_table import table
from replication.errors import ReplicationError

EXPERIMENT = """
from dataclasses import dataclass

TITLE = "invented"


@dataclass(frozen=True)
class Config:
    model: str = "tiny"
    dataset: str = "made"
    ratios: tuple[float, ...] = (0.15,)


def summarise(records, config):
    values = [r["kl"] for r in records]
    mean = sum(values) / len(values)
    return {"kl": {str(config.ratios[0]): {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": len(values)}},
            "speedup": 4, "f1": None}
"""
CLAIM = {
    "id": "half",
    "row": "S-21, A-09",
    "statement": "HKVD at 15 % has at most half of the divergence that naive concatenation has",
    "experiment": "fake",
    "metric": "kl.0.15",
    "criterion": "high <= 0.5",
    "fixed": "2026-11-28",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an experiment `fake`, one claim about it, and its results for one model and two data sets."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "fake.py").write_text(EXPERIMENT)
    monkeypatch.setattr(experiments, "__path__", [str(package)])
    monkeypatch.delitem(sys.modules, "experiments.fake", raising=False)
    write_claims(tmp_path, CLAIM)
    write_result(tmp_path, "made", 0.25)
    write_result(tmp_path, "real", 0.75)
    yield tmp_path
    sys.modules.pop("experiments.fake", None)


def write_claims(place, *claims) -> None:
    (place / "package" / "claims.yaml").write_text(yaml.safe_dump(list(claims)))


def write_result(place, dataset: str, kl: float, started: str = "2026-11-29T10:00:00+00:00") -> None:
    folder = place / "results" / "tiny" / "fake" / dataset
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps({"kl": kl}) + "\n" for _ in range(4)))
    estimate = {"mean": kl, "low": kl - 0.1, "high": kl + 0.1, "n": 4}
    (folder / "summary.json").write_text(json.dumps({"kl": {"0.15": estimate}, "speedup": 4, "f1": None}))
    config = {"model": "tiny", "dataset": dataset, "ratios": [0.15]}
    (folder / "provenance.json").write_text(json.dumps({"config": config, "started": started}))


def change(file, **values) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def verdict(place, **changes) -> str:
    write_claims(place, {**CLAIM, **changes})
    return evaluate(place / "results")[0].verdict


@given(
    terms=st.lists(
        st.tuples(
            st.sampled_from(["mean", "low", "high", "median", "n", "value"]),
            st.sampled_from(["<", "<=", ">", ">="]),
            st.floats(-1e6, 1e6, allow_nan=False),
        ),
        min_size=1,
        max_size=4,
    ),
    space=st.sampled_from(["", " ", "  "]),
)
def test_a_criterion_means_what_it_says(terms, space):
    text = " and ".join(f"{name}{space}{sign}{space}{bound!r}" for name, sign, bound in terms)
    assert parse_criterion(text) == terms


@given(st.text(alphabet="mean low<>=0.5-+e()_and*", max_size=24))
def test_no_text_is_run_as_code(text):
    try:
        terms = parse_criterion(text)
    except ReplicationError:
        return
    assert all(sign in ("<", "<=", ">", ">=") and isinstance(bound, float) for _, sign, bound in terms)


@pytest.mark.parametrize("text", ["", "mean", "mean = 1", "mean >= x", "mean >= 1 or low > 0", "1 <= mean", "f() > 1"])
def test_what_is_no_criterion_is_refused(text):
    with pytest.raises(ReplicationError, match="is not of the form"):
        parse_criterion(text)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "partly"),
        ({"criterion": "high <= 1"}, "reproduced"),
        ({"criterion": "high <= 0.1"}, "not reproduced"),
        ({"criterion": "high <= 1 and n >= 5"}, "not reproduced"),
        ({"where": {"dataset": "made"}}, "reproduced"),
        ({"where": {"dataset": "real"}}, "not reproduced"),
        ({"where": {"model": "huge"}}, "not run"),
        ({"where": {"dataset": "*a*"}}, "partly"),
        ({"where": {"model": "t*", "dataset": "m*"}}, "reproduced"),
        ({"experiment": "other"}, "not run"),
        ({"metric": "kl.0.3"}, "not run"),
        ({"metric": "f1"}, "not testable"),
        ({"metric": "speedup", "criterion": "mean >= 3.5"}, "reproduced"),
        ({"metric": "speedup", "criterion": "value >= 4.5"}, "not reproduced"),
        ({"metric": "speedup", "criterion": "low >= 3.5"}, "not run"),
    ],
)
def test_verdicts(place, changes, expected):
    assert verdict(place, **changes) == expected


@pytest.mark.parametrize(
    ("metric", "criterion", "p", "passed"),
    [
        ("kl_ratio", "high < 1", 0.04, True),
        ("kl_ratio", "high < 1", 0.06, False),
        ("kl_ratio", "high <= 0.5", 0.06, False),
        ("kl_ratio", "high <= 1.02", 0.9, True),  # two equal cells meet it too
        ("kl_difference", "high <= 1", 0.9, True),
        ("kl_difference", "low > 0", 0.06, False),
    ],
)
def test_a_difference_must_stand_beside_the_other_comparisons(place, metric, criterion, p, passed):
    write_claims(place, {**CLAIM, "metric": metric, "criterion": criterion, "where": {"dataset": "made"}})
    estimate = {"mean": 0.3, "low": 0.2, "high": 0.4, "n": 4, "p_holm": p}
    change(place / "results" / "tiny" / "fake" / "made" / "summary.json", **{metric: estimate})
    assert evaluate(place / "results")[0].outcomes[0].passed is passed


@pytest.mark.parametrize(
    ("criterion", "undecided"),
    [("high <= 0.2", True), ("high <= 0.1", False), ("low > 0.3", True), ("low > 0.4", False)],
)
def test_what_failed_is_undecided_where_its_interval_holds_values_that_pass(place, criterion, undecided):
    write_claims(place, {**CLAIM, "criterion": criterion, "where": {"dataset": "made"}})  # 0.25 [0.15, 0.35]
    row = evaluate(place / "results")[0]
    assert (row.verdict, row.undecided) == ("not reproduced", undecided)
    assert ("undecided" in table([row])) == undecided


@given(st.lists(st.sampled_from([True, False, None]), max_size=5))
def test_a_verdict_counts_only_what_could_be_judged(passed):
    row = Row(Claim(**CLAIM), [Outcome(None, "m", "d", {}, value) for value in passed])
    judged = [value for value in passed if value is not None]
    assert (row.verdict == "reproduced") == (bool(judged) and all(judged))
    assert (row.verdict == "not reproduced") == (bool(judged) and not any(judged))
    assert (row.verdict == "partly") == (len(set(judged)) == 2)
    assert (row.verdict == "not testable") == (bool(passed) and not judged)
    assert (row.verdict == "not run") == (not passed)


def test_the_table_is_aligned_and_shows_intervals(place):
    lines = table(evaluate(place / "results")).splitlines()
    assert lines[0].split() == ["claim", "row", "statement", "and", "criterion", "result", "verdict"]
    assert lines[2].startswith("half") and lines[2].endswith("partly")  # noqa: PT018 - one line
    text = "\n".join(lines)
    assert "0.25 [0.15, 0.35] n=4  pass" in text
    assert "0.75 [0.65, 0.85] n=4  FAIL" in text
    assert "(high <= 0.5)" in text
    column = lines[0].index("result")
    assert lines[2].index("tiny · made") == lines[4].index("tiny · real") == column


def test_the_table_of_what_was_not_measured(place):
    write_claims(place, {**CLAIM, "metric": "f1"}, {**CLAIM, "id": "b", "metric": "x"})
    text = table(evaluate(place / "results"))
    assert "not testable here" in text
    assert "not in the summary" in text
    assert table([]) == "no claims"


def test_dates_are_utc(place):
    for fixed in ("2026-11-28", "2026-11-28T00:00:00", "2026-11-28T01:00:00+01:00", datetime(2026, 11, 28).date()):
        write_claims(place, {**CLAIM, "fixed": fixed})
        assert load_claims()[0].fixed == datetime(2026, 11, 28, tzinfo=UTC)


def test_consistent_results_have_no_problem(place):
    assert check(place / "results") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"criterion": "high < half"}, "is not of the form"),
        ({"fixed": "last week"}, "is no ISO date"),
        ({"fixed": 3}, "is no ISO date"),
        ({"row": "B-1"}, "is no S-.. or A-.."),
        ({"metric": 3}, "metric must be text"),
        ({"where": {"seed": 1}}, "where takes model and dataset"),
        ({"note": "x"}, "unknown key note"),
    ],
)
def test_a_malformed_claim_is_a_problem(place, changes, message):
    write_claims(place, {**CLAIM, **changes})
    (problem,) = check(place / "results")
    assert "claim half" in problem
    assert message in problem
    with pytest.raises(ReplicationError, match="claim half"):
        load_claims()


def test_what_cannot_be_tested_says_why_and_has_no_criterion(place):
    limit = {"id": "limit", "row": "A-24", "statement": "one node", "reason": "a limit that the paper states"}
    write_claims(place, limit)
    rows = evaluate(place / "results")
    assert [row.verdict for row in rows] == ["not testable"]
    assert "(a limit that the paper states)" in table(rows)
    assert check(place / "results") == []
    write_claims(place, {**limit, "metric": "x"}, {**limit, "reason": " "})
    assert [problem.split(": ", 1)[1] for problem in read_claims()[1]] == [
        "what cannot be tested has no metric",
        "reason must be text",
    ]


def test_what_needs_another_machine_is_judged_only_where_it_ran(place):
    claim = {**CLAIM, "needs": "a CUDA device"}
    write_claims(place, {**claim, "where": {"dataset": "made"}}, {**claim, "id": "not", "where": {"dataset": "other"}})
    rows = evaluate(place / "results")
    assert [row.verdict for row in rows] == ["reproduced", "not testable"]
    assert "needs a CUDA device" in " ".join(table(rows).split())
    assert check(place / "results") == []


def test_claims_and_committed_results_are_consistent():
    assert check(Path(__file__).resolve().parent.parent / "results") == []


def test_every_row_of_article_and_paper_has_a_claim():
    article = [range(1, 8), range(10, 25), range(30, 36), range(40, 45), range(50, 51), range(60, 66)]
    rows = {f"S-{i:02}" for part in article for i in part} | {f"A-{i:02}" for i in range(1, 25)}
    assert rows == {row.strip() for claim in load_claims() for row in claim.row.split(",")}


def test_an_incomplete_or_repeated_claim_is_a_problem(place):
    write_claims(place, CLAIM, CLAIM, {"id": "short"}, "text")
    claims, problems = read_claims()
    assert [claim.id for claim in claims] == ["half"]
    assert [problem.split(": ", 1)[1][:12] for problem in problems] == ["its id is ta", "it lacks cri", "it is no map"]


def test_a_claim_without_result_is_a_problem(place):
    write_claims(place, {**CLAIM, "where": {"model": "huge"}})
    assert check(place / "results") == ["claim half: no result of fake for model huge"]


def test_a_claim_whose_metric_is_absent_is_a_problem(place):
    write_claims(place, {**CLAIM, "metric": "kl.0.3"})
    problems = check(place / "results")
    assert len(problems) == 2
    assert all(problem.endswith("has no kl.0.3 with what the criterion names") for problem in problems)


def test_a_criterion_that_was_fixed_after_the_run_is_a_problem(place):
    write_claims(place, {**CLAIM, "fixed": "2026-11-29T10:00:01"})
    problems = check(place / "results")
    assert len(problems) == 2
    assert all("was run before the criterion was fixed" in problem for problem in problems)


def test_an_edited_summary_is_a_problem(place):
    file = place / "results" / "tiny" / "fake" / "made" / "summary.json"
    change(file, speedup=5)
    (problem,) = check(place / "results")
    assert problem.endswith("summary.json: speedup is not what its records give")
    change(file, speedup=4 * (1 + 1e-9), extra=1)
    (problem,) = check(place / "results")
    assert "extra is not" in problem


def test_an_unfinished_run_is_a_problem(place):
    (place / "results" / "tiny" / "fake" / "made" / "summary.json").unlink()
    assert any("made: no summary.json" in problem for problem in check(place / "results"))


def test_a_summary_without_records_is_a_problem(place):
    (place / "results" / "tiny" / "fake" / "made" / "records.jsonl").unlink()
    (problem,) = check(place / "results")
    assert "records.jsonl: No such file" in problem


def test_edited_records_are_a_problem(place):
    (place / "results" / "tiny" / "fake" / "made" / "records.jsonl").write_text('{"kl": 0.9}\n')
    (problem,) = check(place / "results")
    assert "kl.0.15.high is not what its records give" in problem


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"config": {"sead": 1}}'])
def test_damaged_provenance_is_a_problem(place, content):
    (place / "results" / "tiny" / "fake" / "made" / "provenance.json").write_text(content)
    assert check(place / "results")
