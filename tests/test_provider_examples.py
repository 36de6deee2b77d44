"""The example of every module of the provider's prompt cache gives what it shows."""

import doctest
import importlib
import pkgutil

import pytest

from replication.caches import provider

MODULES = [info.name for info in pkgutil.iter_modules(provider.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_example_gives_what_it_shows(name):
    module = importlib.import_module(f"replication.caches.provider.{name}")
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
