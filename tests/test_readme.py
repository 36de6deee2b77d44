"""README.md says what the files say, and its example runs."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()


def rendered_from(results: Path) -> str:
    module = runpy.run_path(str(ROOT / "scripts" / "render_readme.py"))
    module["rendered"].__globals__["RESULTS"] = results
    return module["rendered"](TEXT)


def test_the_numbers_are_those_of_the_results():
    assert rendered_from(ROOT / "results") == TEXT


def test_a_changed_result_changes_the_text(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("records.jsonl", "*.p*"))
    for file in (tmp_path / "results").glob("*/quality_vs_ttft/*/summary.json"):
        file.write_text(re.sub(r'"mean": 0\.', '"mean": 7.', file.read_text()))
    assert rendered_from(tmp_path / "results") != TEXT


def test_the_python_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert "'ttft':" in capsys.readouterr().out


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()
