"""Runs the example in a module's docstring: its indented lines. Every print says in a comment what it prints."""

import contextlib
import inspect
import io
import re
from types import ModuleType


def check_example(module: ModuleType) -> None:
    lines = [line for line in module.__doc__.splitlines() if line.startswith("    ")]
    code = inspect.cleandoc("\n".join(lines))
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == expected
