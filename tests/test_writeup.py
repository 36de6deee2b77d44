"""The paper, DEVIATIONS and the report pages say what results/ says: a changed result changes all of them."""

import base64
import json
import re
import shutil
from pathlib import Path

import pytest

from replication import cli
from replication.claims import evaluate, load_claims
from replication.errors import ReplicationError
from replication.runner import find_experiments
from replication.writeup.effects import EFFECTS, effect
from replication.writeup.paper import ESTIMATES, numbers
from replication.writeup.report import pages, write_reports
from replication.writeup.sources import sources
from replication.writeup.values import found, summaries

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
MODEL = "gemma3-270m"
DATASET = "synthetic"


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of two experiments of one model, without records and vector figures."""
    ignored = shutil.ignore_patterns("*.jsonl", "*.pdf")
    for experiment in ("quality_vs_ttft", "ttft"):
        shutil.copytree(RESULTS / MODEL / experiment, tmp_path / "results" / MODEL / experiment, ignore=ignored)
    return tmp_path / "results"


def change(root: Path, path: tuple[str, ...], value) -> None:
    """Sets one number in the summary of quality_vs_ttft."""
    file = root / MODEL / "quality_vs_ttft" / DATASET / "summary.json"
    content = json.loads(file.read_text())
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file.write_text(json.dumps(content))


def estimate(content: dict, name: str) -> dict:
    return next(e for e in content["estimates"][name] if (e["model"], e["dataset"]) == (MODEL, DATASET))


def test_the_papers_numbers_are_those_of_the_results():
    assert json.loads((ROOT / "paper" / "numbers.json").read_text()) == json.loads(json.dumps(numbers(RESULTS)))


def test_a_changed_result_changes_the_papers_numbers(copied):
    before = numbers(copied)
    change(copied, ("cells", "naive", "kl_first", "mean"), 77.25)
    after = numbers(copied)
    assert estimate(after, "naive-kl")["centre"] == 77.25
    assert estimate(after, "naive-kl")["text"].startswith("77.2")
    assert any("77.25 [" in cell for row in after["tables"]["quality"]["rows"] for cell in row)
    assert after["digest"] != before["digest"]
    assert estimate(after, "blend-kl") == estimate(before, "blend-kl")


def test_a_changed_result_changes_the_papers_verdicts(copied):
    def verdict(content):
        return next(claim["verdict"] for claim in content["claims"] if claim["id"] == "naive-fails")

    assert verdict(numbers(copied)) == "reproduced"
    change(copied, ("cells", "naive", "kl_first", "low"), 0.0)
    assert verdict(numbers(copied)) == "partly"


def test_every_row_of_the_sources_is_listed_and_every_claim_under_its_rows():
    rows = evaluate(RESULTS)
    listed = sources(rows)
    assert {row.claim.id for source in listed for row in source.rows} == {claim.id for claim in load_claims()}
    assert [s.id for s in listed if s.id.startswith("A-")] == [f"A-{number:02}" for number in range(1, 25)]
    assert all(source.rows for source in listed)


def test_a_report_page_holds_all_that_it_shows(copied):
    (page,) = write_reports(copied)
    text = page.read_text()
    assert page == copied / MODEL / "report.html"
    figures = sorted(copied.glob("*/*/*/figure.png"))
    assert figures
    for figure in figures:
        assert base64.b64encode(figure.read_bytes()).decode() in text
        run = json.loads(figure.with_name("provenance.json").read_text())
        assert " ".join(run["command"]) in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert "<script" not in text
    judged = [row for row in evaluate(copied) if row.outcomes]
    assert all(f'id="{row.claim.id}"' in text for row in judged)
    assert all(f'href="#{row.claim.id}"' in text for row in judged)


def test_the_pages_are_those_of_the_results():
    assert [str(page) for page, text in pages(RESULTS).items() if page.read_text() != text] == []


def test_a_changed_result_changes_the_report_page(copied):
    (page,) = write_reports(copied)
    before = page.read_text()
    change(copied, ("cells", "naive", "kl_first"), {"mean": 0.04321, "low": 0.01, "high": 0.09, "n": 3})
    write_reports(copied)
    after = page.read_text()
    assert "0.0432 [0.01, 0.09] n=3" in after
    assert "0.0432 [0.01, 0.09] n=3" not in before


def test_text_in_a_page_is_no_markup(copied):
    file = copied / MODEL / "ttft" / DATASET / "provenance.json"
    content = json.loads(file.read_text())
    content["command"] = ["python", "<b>&"]
    file.write_text(json.dumps(content))
    (page,) = write_reports(copied)
    assert "&#x27;&lt;b&gt;&amp;&#x27;" in page.read_text()
    assert "<b>&" not in page.read_text()


def test_the_command_writes_the_pages(copied, capsys):
    assert cli.main(["report", "--out", str(copied)]) == 0
    assert capsys.readouterr().out.strip().endswith(f"{MODEL}/report.html")


def test_a_folder_without_results_is_a_mistake(tmp_path):
    with pytest.raises(ReplicationError, match="holds no results"):
        write_reports(tmp_path)


def test_an_unfinished_run_is_a_mistake(copied):
    (copied / MODEL / "ttft" / DATASET / "figure.png").unlink()
    with pytest.raises(ReplicationError, match="not finished"):
        write_reports(copied)


def test_an_effect_is_measured_or_says_how_to(copied):
    assert effect(copied, "mask").count("not measured yet") == 2
    assert "python -m replication run ablations --out results" in effect(copied, "mask")
    folder = copied / MODEL / "ablations" / DATASET
    folder.mkdir(parents=True)
    found = {"kl_first_ratio": {"mean": 1.25, "low": 1.1, "high": 1.5, "n": 9}}
    (folder / "summary.json").write_text(json.dumps({"over_baseline": {"mask: bottom right": found}}))
    assert f"1.25 [1.1, 1.5] n=9 ({MODEL}, {DATASET})" in effect(copied, "mask")
    assert effect(copied, "mask").count("not measured yet") == 1


def test_deviations_has_every_effect_once():
    text = (ROOT / "DEVIATIONS.md").read_text()
    assert sorted(re.findall(r"<!-- effect ([a-z-]+) -->", text)) == sorted(EFFECTS)


def test_the_paper_compiles_from_its_numbers():
    typst = pytest.importorskip("typst")
    pdf = typst.compile(str(ROOT / "paper" / "paper.typ"), root=str(ROOT), ignore_system_fonts=True)
    assert pdf.startswith(b"%PDF")


def test_the_committed_paper_has_the_present_numbers():
    digest = json.loads((ROOT / "paper" / "numbers.json").read_text())["digest"]
    assert digest.encode() in (ROOT / "paper" / "paper.pdf").read_bytes()


def test_what_is_named_is_found_where_it_was_measured():
    """A misspelt metric would read as not measured for ever."""
    # only models with a BOS, or without one, have some of these; answers are summed up behind an open gate only
    effects = [part for name, parts in EFFECTS.items() if name not in ("bos", "answers") for part in parts]
    named = [(part.experiment, part.metric) for part in effects] + list(ESTIMATES.values())
    assert {experiment for experiment, _ in named} <= find_experiments().keys()
    measured = [where for where in named if summaries(RESULTS, where[0])]
    assert [where for where in measured if not found(RESULTS, *where)] == []
