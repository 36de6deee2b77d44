"""The command line: `python -m replication COMMAND`.

torch and transformers are imported by the commands that need them, so that --help answers at once.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from replication.errors import ReplicationError
from replication.registry import Registry

LISTINGS = ("models", "methods", "selectors", "datasets", "experiments")
_RESUMABLE = ("reproduce", "run")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise ReplicationError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when `claims --check` finds a problem, 2 for a mistake, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _command(arguments)
    except ReplicationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumable = arguments[0] in _RESUMABLE
        print("\ninterrupted" + "; the same command resumes where it stopped" * resumable, file=sys.stderr)
        return 130


def _command(arguments: list[str]) -> int:
    parser, commands = _parser()
    if not arguments:
        parser.print_help()
        return 0
    if not arguments[0].startswith("-"):
        commands[arguments[0]]  # argparse's own message does not name the nearest
    options = parser.parse_args(arguments)
    return options.run(options)


def _parser() -> tuple[_Parser, Registry]:
    parser = _Parser(prog="python -m replication", description="Chunk-level KV cache reuse: run, measure, judge.")
    adder = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands = Registry("command")

    def add(name: str, run: Callable, about: str) -> _Parser:
        commands[name] = command = adder.add_parser(name, help=about, description=about)
        command.set_defaults(run=run)
        return command

    command = add("reproduce", _reproduce, "run all experiments of a profile, then judge the claims")
    command.add_argument("--profile", default="quick", help="quick by default; an unknown one lists them all")
    _add_run_options(command, "runs/PROFILE")

    command = add("run", _run, "run one experiment")
    command.add_argument("experiment", metavar="EXPERIMENT", help="a name that `experiments` lists")
    command.add_argument("--model", help="a name that `models` lists, a directory or a hub id")
    command.add_argument("--dataset", help="a name that `datasets` lists")
    command.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any setting; lists with commas"
    )
    _add_run_options(command, "runs/single")

    command = add("claims", _claims, "the claims with what the results say about them")
    command.add_argument("--out", default="results", help="folder of results (default: results)")
    command.add_argument("--check", action="store_true", help="verify results and criteria; exit code 1 on a problem")

    command = add("report", _report, "write a page for each model: claims, figures, commands")
    command.add_argument("--out", default="results", help="folder of results (default: results)")

    command = add("diff", _diff, "where the token ids of two prompts part")
    command.add_argument("a", metavar="A", help="a text file, or the text itself")
    command.add_argument("b", metavar="B", help="a text file, or the text itself")
    command.add_argument("--model", default="smollm2-135m", help="whose tokenizer (default: smollm2-135m)")

    command = add("prompt-cost", _prompt_cost, "what logged Messages API requests would read, write and cost")
    command.add_argument("file", metavar="FILE.jsonl", help="a request body a line; optional keys: at, usage")
    _add_prompt_options(command)

    command = add("prompt-server", _prompt_server, "a local Messages API with a simulated prompt cache")
    command.add_argument("--port", type=int, default=8000, help="of 127.0.0.1 (default: 8000; 0: any free one)")
    _add_prompt_options(command)

    for name in LISTINGS:
        add(name, _list, f"list {name}").set_defaults(what=name)
    return parser, commands


def _add_run_options(command: _Parser, out: str) -> None:
    command.add_argument("--out", help=f"folder of results (default: {out}); a run there is resumed")
    command.add_argument("--seed", help="seed of the data")
    command.add_argument("--device", help="cpu, cuda, ...")
    command.add_argument("--dtype", help="float32, bfloat16 or float16")
    command.add_argument("--data-dir", help="folder of local data files (default: REPLICATION_DATA)")


def _add_prompt_options(command: _Parser) -> None:
    command.add_argument("--model", default="smollm2-135m", help="a local model, whose tokenizer counts")
    command.add_argument("--on", type=_date, help="the date whose rules hold, YYYY-MM-DD (default: today)")


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    given = {key: getattr(options, key) for key in ("seed", "device", "dtype", "data_dir")}
    return {key: value for key, value in given.items() if value is not None}


def _reproduce(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    from replication.claims import evaluate, load_claims
    from replication.claims_table import table
    from replication.runner import find_profiles, run_profile, shown

    claims = load_claims()  # a malformed one should not wait for the runs to end
    find_profiles()[options.profile]
    out = Path(shown(options.out or Path("runs", options.profile)))
    folders = run_profile(options.profile, out, _overrides(options))
    print(f"\n{table(evaluate(out, claims))}\n\nfigures:")
    for folder in folders:
        print(f"  {shown(folder / 'figure.png')}")
    print(f"done in {_duration(time.monotonic() - begun)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    from replication.runner import check_runs, configure, run_one, shown

    settings = _overrides(options) | dict(_assignment(text) for text in options.set)
    config = configure(options.experiment, options.model, options.dataset, settings)
    out = Path(shown(options.out or Path("runs", "single")))
    check_runs([(options.experiment, config)], out)
    folder = run_one(options.experiment, config, out)
    print(f"summary: {shown(folder / 'summary.json')}\nfigure:  {shown(folder / 'figure.png')}")
    print(f"done in {_duration(time.monotonic() - begun)}")
    return 0


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ReplicationError(f"--set takes KEY=VALUE, not '{text}'")
    return key.replace("-", "_"), value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _claims(options: argparse.Namespace) -> int:
    from replication.claims import evaluate
    from replication.claims_table import table

    root = _results(options.out)
    if not options.check:
        print(table(evaluate(root)))
        return 0
    from replication.claims_check import check

    problems = check(root)
    print("\n".join(problems) or "claims and results are consistent")
    return 1 if problems else 0


def _report(options: argparse.Namespace) -> int:
    from replication.runner import shown
    from replication.writeup.report import write_reports

    for page in write_reports(_results(options.out)):
        print(shown(page))
    return 0


def _results(out: str) -> Path:
    if not Path(out).is_dir():
        raise ReplicationError(f"no results folder {out}; give one with --out")
    return Path(out)


def _diff(options: argparse.Namespace) -> int:
    from replication.prompt_diff import compare

    print(compare(options.a, options.b, options.model))
    return 0


def _prompt_cost(options: argparse.Namespace) -> int:
    from replication.caches.provider.log import report

    print(report(options.file, options.model, options.on or date.today()))
    return 0


def _prompt_server(options: argparse.Namespace) -> int:
    from replication.caches.provider.answer import Answerer
    from replication.caches.provider.anthropic import PromptCache
    from replication.caches.provider.request import tokenizer_of
    from replication.caches.provider.server import PromptServer
    from replication.model import load_model

    model = load_model(options.model)
    cache = PromptCache(options.on or date.today(), tokenizer_of(model.tokenizer))
    with PromptServer(cache, Answerer(model), options.port) as server:
        print(f"ANTHROPIC_BASE_URL={server.url}\nANTHROPIC_API_KEY=local\nCtrl-C ends it", flush=True)
        threading.Event().wait()
    return 0


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ReplicationError(f"'{text}' is no date of the form YYYY-MM-DD") from error


def _list(options: argparse.Namespace) -> int:
    from replication.listings import entries

    found = entries(options.what)
    width = max((len(name) for name in found), default=0)
    for name, about in found.items():
        print(f"{name.ljust(width)}  {about}")
    if options.what == "models":
        print("Any directory that holds a transformers model works too, and any hub id with internet.")
    return 0
