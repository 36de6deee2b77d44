"""README.md and DEVIATIONS.md say what the files say, and the example runs."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "DEVIATIONS.md")
TEXT = (ROOT / "README.md").read_text()


def rendered_from(results: Path, document: str = "README.md") -> str:
    script = runpy.run_path(str(ROOT / "scripts" / "render.py"))
    return script["rendered"]((ROOT / document).read_text(), results)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_numbers_are_those_of_the_results(document):
    assert rendered_from(ROOT / "results", document) == (ROOT / document).read_text()


def test_a_changed_result_changes_the_text(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("records.jsonl", "*.p*"))
    for file in (tmp_path / "results").glob("*/quality_vs_ttft/*/summary.json"):
        file.write_text(re.sub(r'"mean": 0\.', '"mean": 7.', file.read_text()))
    assert rendered_from(tmp_path / "results") != TEXT


def test_the_python_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert "'ttft':" in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    paths = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
