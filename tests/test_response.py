"""The exact response cache: what is in its key, what it refuses, its bounds, and processes that share or die on it."""

import hashlib
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.caches import response
from replication.caches.response import ResponseCache, encode_request, is_deterministic, request_key
from replication.errors import ReplicationError

REQUEST = {
    "model": "m-1",
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0,
    "max_tokens": 64,
    "stop": ["\n"],
    "seed": 1,
}

# what JSON can say: finite numbers, and text with what JSON itself is written in
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text('a0"\\,:{}[]é\ud800', max_size=3)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
requests = st.dictionaries(st.sampled_from(["model", "seed", "stop", "messages", "x"]), values)


def ask(number: int) -> dict:
    return REQUEST | {"messages": [{"role": "user", "content": f"question {number}"}]}


def exactly(value):
    """A value that is equal to another's only if type, order and sign are, too."""
    if isinstance(value, dict):
        return ("dict", [(key, exactly(item)) for key, item in value.items()])
    if isinstance(value, list):
        return ("list", [exactly(item) for item in value])
    return (type(value).__name__, repr(value))


@pytest.mark.parametrize("field", [*REQUEST, "a_field_of_tomorrow"])
def test_a_field_that_is_given_null_false_empty_or_absent_makes_five_requests(field):
    """User report 40. What else of each field counts is in the experiment's table, tested with it."""
    given = REQUEST | {field: REQUEST.get(field) or 2}
    absent = {key: value for key, value in given.items() if key != field}
    others = [given | {field: value} for value in (None, False, "")]
    assert len({request_key(r) for r in (given, absent, *others)}) == 5


@pytest.mark.parametrize("field", sorted(response.IGNORED))
def test_what_does_not_change_the_answer_is_not_in_the_key(field):
    assert request_key(REQUEST | {field: "x"}) == request_key(REQUEST)


def test_the_order_of_the_requests_own_fields_does_not_matter():
    assert request_key(dict(reversed(REQUEST.items()))) == request_key(REQUEST)


def test_a_new_key_version_finds_nothing_old(monkeypatch):
    cache = ResponseCache(":memory:")
    cache.put(REQUEST, b"old")
    monkeypatch.setattr(response, "KEY_VERSION", response.KEY_VERSION + 1)
    assert cache.get(REQUEST) is None


@given(requests, requests)
def test_two_requests_share_an_encoding_only_if_all_fields_are_the_same(a, b):
    same = exactly(dict(sorted(a.items()))) == exactly(dict(sorted(b.items())))
    assert (encode_request(a) == encode_request(b)) == same


@given(requests, st.sampled_from(["model", "seed"]), values, values)
def test_one_changed_field_changes_the_encoding(request_, field, before, after):
    same = exactly(before) == exactly(after)
    assert (encode_request(request_ | {field: before}) == encode_request(request_ | {field: after})) == same


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), {1: "a"}, {"a": {None: 1}}, [b"x"], [{"s": {1}}]])
def test_what_json_would_confuse_is_refused(bad):
    with pytest.raises(ReplicationError, match=r"request\.x"):
        request_key(REQUEST | {"x": bad})


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(0, True), (0.0, True), (0.1, False), (1, False), (None, False), (False, False), ("0", False)],
)
def test_only_temperature_zero_is_cached(temperature, expected):
    request = REQUEST | {"temperature": temperature}
    cache = ResponseCache(":memory:")
    assert is_deterministic(request) == expected
    assert cache.put(request, b"a") == expected
    assert (cache.get(request) is not None) == expected
    assert len(cache) == expected


def test_without_a_temperature_the_provider_samples():
    assert not ResponseCache(":memory:").put({k: v for k, v in REQUEST.items() if k != "temperature"}, b"a")


def test_entries_expire_by_the_clock():
    now = [100.0]
    cache = ResponseCache(":memory:", ttl_seconds=10, clock=lambda: now[0])
    cache.put(REQUEST, b"a")
    now[0] = 109.9
    assert cache.get(REQUEST) == b"a"
    now[0] = 110.0  # reading has not made it younger
    assert cache.get(REQUEST) is None
    assert (len(cache), cache.nbytes) == (0, 0)


@pytest.mark.parametrize("settings_", [{"ttl_seconds": 0}, {"max_bytes": 0}])
def test_bounds_that_keep_nothing_are_refused(settings_):
    with pytest.raises(ReplicationError, match="above 0"):
        ResponseCache(":memory:", **settings_)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(5, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 20)), max_size=40),
)
def test_the_bound_holds_and_the_least_recently_used_goes_first(bound, steps):
    cache, model = ResponseCache(":memory:", max_bytes=bound), {}
    for is_put, number, size in steps:
        if is_put:
            assert cache.put(ask(number), b"x" * size) == (size <= bound)
            if size <= bound:
                model.pop(number, None)
                model[number] = size
                while sum(model.values()) > bound:
                    model.pop(next(iter(model)))
        else:
            found = cache.get(ask(number))
            assert found == (b"x" * model[number] if number in model else None)
            if number in model:
                model[number] = model.pop(number)
        assert cache.nbytes == sum(model.values()) <= bound
        assert len(cache) == len(model)
    cache.close()


def test_it_outlives_the_process_that_made_it(tmp_path):
    cache = ResponseCache(tmp_path / "r.db")
    cache.put(REQUEST, b"a")
    cache.close()
    assert ResponseCache(tmp_path / "r.db").get(REQUEST) == b"a"


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "r.db").write_bytes(content)
    with pytest.raises(ReplicationError, match=r"r\.db"):
        ResponseCache(tmp_path / "r.db")


def test_another_programs_database_is_left_alone(tmp_path):
    other = sqlite3.connect(tmp_path / "r.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    with pytest.raises(ReplicationError, match="another program"):
        ResponseCache(tmp_path / "r.db")
    assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def _work(path: str, worker: int) -> int:
    """Puts and gets among keys that all workers share; a body says which request it answers."""
    cache, wrong = ResponseCache(path, max_bytes=20_000), 0
    for step in range(60):
        number = (7 * worker + step) % 40
        found = cache.get(ask(number))
        wrong += found is not None and not found.startswith(b"%d " % number)
        cache.put(ask(number), b"%d " % number + os.urandom(1) * 1000)
    return wrong


def test_processes_that_share_a_file_never_see_a_wrong_or_torn_answer(tmp_path):
    path = str(tmp_path / "r.db")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        wrong = pool.starmap(_work, [(path, worker) for worker in range(4)])
    cache = ResponseCache(path, max_bytes=20_000)
    assert sum(wrong) == 0
    assert 0 < cache.nbytes <= 20_000
    stored = sqlite3.connect(path).execute("SELECT length(body) FROM entries").fetchall()
    assert cache.nbytes == sum(size for (size,) in stored)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


_WRITER = """
import sys
from replication.caches.response import ResponseCache
cache = ResponseCache(sys.argv[1])
for number in range(10**9):
    body = b"%d" % number * 5000
    cache.put({"temperature": 0, "messages": number}, body)
    print(number, flush=True)
"""


def test_a_killed_writer_loses_at_most_the_entry_it_was_writing(tmp_path):
    path = tmp_path / "r.db"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True)
    told = [int(writer.stdout.readline())]
    time.sleep(0.2)
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().splitlines() if line.endswith(tuple("0123456789"))]
    writer.wait()
    cache = ResponseCache(path)
    last = max(told)
    for number in range(last + 1):
        assert cache.get({"temperature": 0, "messages": number}) == b"%d" % number * 5000
    assert len(cache) in (last + 1, last + 2)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_key_is_the_hash_of_the_canonical_bytes():
    assert request_key(REQUEST) == hashlib.sha256(encode_request(REQUEST)).digest()
    assert encode_request({"b": 0, "a": "é"}) == b'[1,{"a":"\\u00e9","b":0}]'
