"""Runs the example at the end of a module's docstring, of which every print says in a comment what it prints."""

import contextlib
import io
import re
import textwrap
from types import ModuleType


def check_example(module: ModuleType) -> None:
    start = re.search(r"^ *(from|import) ", module.__doc__, re.MULTILINE).start()
    code = textwrap.dedent(module.__doc__[start:])
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == expected
