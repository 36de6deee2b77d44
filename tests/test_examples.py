"""The example in a module's docstring gives what it shows, and every cache has one."""

import doctest
import importlib
import pkgutil

import pytest

import replication
from replication import caches

MODULES = [info.name for info in pkgutil.walk_packages(replication.__path__, "replication.") if not info.ispkg]
CACHES = [name for name in MODULES if name.startswith(caches.__name__)]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "replication.__main__"])
def test_the_example_gives_what_it_shows(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert attempted > 0 or name not in CACHES
