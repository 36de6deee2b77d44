"""docs/user_reports.md: every row is there, and every test and experiment that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from replication.runner import find_experiments

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "user_reports.md").read_text()
ROWS = {int(number): answer for number, answer in re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", TEXT, re.MULTILINE)}


@cache
def names_of(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_every_report_has_its_row():
    assert list(ROWS) == list(range(1, 48))


@pytest.mark.parametrize("number", ROWS)
def test_what_answers_a_report_exists(number):
    named = re.findall(r"`([^`]+)`", ROWS[number])
    assert named or "*open:*" in ROWS[number]
    for name in named:
        file, _, test = name.partition("::")
        assert test in names_of(ROOT / "tests" / file) if test else name in find_experiments()


def test_what_is_cited_has_a_row():
    files = [*ROOT.glob("replication/**/*.py"), *ROOT.glob("experiments/*.py"), *ROOT.glob("tests/*.py")]
    cited = [re.findall(r"(?i)(user )?reports? (\d+)", file.read_text()) for file in files]
    found = [(user, int(number)) for matches in cited for user, number in matches]
    assert len(found) > 20
    assert all(user and number in ROWS for user, number in found)
