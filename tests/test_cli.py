"""The command line: exit codes, one-line errors, listings, diff. Whole processes are slow, so most call main."""

import re
import subprocess
import sys

import pytest

from replication import cli, runner


def test_help_imports_nothing_heavy():
    code = "import sys; from replication import cli; cli._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mistake_is_one_line_and_exit_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "replication", "repoduce"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: unknown command 'repoduce'; did you mean reproduce.*\?\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--profile", "quik"], "unknown profile 'quik'"),
        (["run", "no_such"], "unknown experiment 'no_such'"),
        (["run"], "the following arguments are required: EXPERIMENT"),
        (["run", "x", "--set", "ratio"], "--set takes KEY=VALUE, not 'ratio'"),
        (["claims", "--out", "no such folder"], "no results folder no such folder"),
        (["methods", "--what"], "unrecognized arguments: --what"),
        (["diff", "a", "b", "--model", "smolm2-135m"], "did you mean smollm2-135m?"),
        (["diff", ".", "b"], ". is a directory"),
        (["run", "ttft", "--set", "dtypes="], "dtypes must be of float32, bfloat16, float16, not ''"),
        (["run", "ttft", "--set", "dtypes=float32,int8"], "not 'int8'"),
        (["run", "request_cache", "--set", "dtypes=float32,int8"], "not 'int8'"),
        (["run", "quality_vs_ttft", "--set", "answer_ratio=0.2"], "measured at answer_ratio 0.2"),
        (["run", "quality_vs_ttft", "--set", "ratios=", "points="], "measured at answer_ratio 0.15"),
    ],
)
def test_mistakes_name_what_is_wrong(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("replication.claims.load_claims", lambda: [])
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_ctrl_c_says_that_the_command_resumes(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("replication.claims.load_claims", interrupted)
    assert cli.main(["reproduce", "--profile", "smoke"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted; the same command resumes where it stopped"


def test_options_reach_the_run(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(runner, "configure", lambda *arguments: arguments)
    monkeypatch.setattr(runner, "check_runs", lambda runs, out: seen.append((runs, out)))
    monkeypatch.setattr(runner, "run_one", lambda name, config, out: out / name)
    monkeypatch.chdir(tmp_path)
    options = ["--model", "m", "--seed", "3", "--set", "n=2", "ratios=0.1,1", "--set", "check-layer=2"]
    assert cli.main(["run", "fake", *options, "--out", str(tmp_path / "out")]) == 0
    settings = {"seed": "3", "n": "2", "ratios": "0.1,1", "check_layer": "2"}
    (((name, config),), out) = seen[0]
    assert (name, config) == ("fake", ("fake", "m", None, settings))
    assert str(out) == "out"
    assert "out/fake/figure.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "expected"),
    [("models", "smollm2-135m"), ("methods", "naive"), ("selectors", "hkvd"), ("datasets", "synthetic-2hop")],
)
def test_listings_have_one_described_name_a_line(what, expected, capsys):
    assert cli.main([what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(expected + " ") for line in lines)
    assert all(re.match(r"\S+ +\S", line) for line in lines)


class WordTokenizer:
    """Words with the space before them; ids are given in order of appearance."""

    def __init__(self):
        self.words = []

    def __call__(self, text: str) -> dict:
        words = re.findall(r"\s*\S+|\s+$", text)
        self.words += [word for word in dict.fromkeys(words) if word not in self.words]
        return {"input_ids": [self.words.index(word) for word in words]}

    def decode(self, ids) -> str:
        return "".join(self.words[i] for i in ids)


@pytest.fixture
def diff(monkeypatch, capsys):
    def lines(a, b) -> list[str]:
        assert cli.main(["diff", str(a), str(b)]) == 0
        return capsys.readouterr().out.splitlines()

    monkeypatch.setattr("replication.prompt_diff.model_source", lambda model: model)
    monkeypatch.setattr("replication.prompt_diff.AutoTokenizer.from_pretrained", lambda _: WordTokenizer())
    return lines


def test_diff_shows_the_first_token_that_differs(diff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"one two\r\nthree")
    (tmp_path / "b.txt").write_bytes(b"one two\nthree four")
    assert diff("a.txt", tmp_path / "b.txt") == [
        "A: 3 tokens, a.txt",
        "B: 4 tokens, b.txt",
        "first difference: token 2 (counting from 0); the 2 before it could come from a cache",
        r"A: id 2 '\r\nthree'",
        r"   'one two' >>> '\r\nthree'",
        r"B: id 3 '\nthree'",
        r"   'one two' >>> '\nthree four'",
    ]


def test_diff_of_a_prompt_and_its_continuation(diff):
    lines = diff("one two", "one two\n")
    assert lines[0] == "A: 2 tokens, from the command line (no such file)"
    assert "A: ends here" in lines
    assert r"B: id 2 '\n'" in lines


def test_diff_of_equal_prompts(diff):
    assert diff("one two", "one two")[-1] == "the token ids are the same"
