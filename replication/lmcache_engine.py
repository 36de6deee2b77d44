"""Starting LMCache's engine in this process without leaving traces in it.

LMCache is made to own its process. Starting it switches multiprocessing to `spawn`, may switch the garbage collector
off, sends usage data over the network, sets environment variables, and starts threads that keep the process alive.
"""

import gc
import importlib.util
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from replication.errors import ReplicationError

_ENVIRONMENT = {
    "LMCACHE_TRACK_USAGE": "false",
    # LMCache warns when it is unset; what it hashes are integers, which the seed does not touch
    "PYTHONHASHSEED": "0",
    "LMCACHE_LOG_LEVEL": os.environ.get("LMCACHE_LOG_LEVEL", "ERROR"),
}


def require_lmcache() -> None:
    """ReplicationError where the optional package is missing."""
    if importlib.util.find_spec("lmcache") is None:
        raise ReplicationError("LMCache is not installed: run `bash scripts/engines/lmcache.sh`")


@contextmanager
def contained() -> Iterator[None]:
    """Within the context LMCache may be imported and started; afterwards the process is as it was."""
    require_lmcache()
    start_method, collecting = multiprocessing.get_start_method(allow_none=True), gc.isenabled()
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    try:
        import lmcache.v1.cache_engine  # noqa: F401  before the next variable: prometheus reads it when it is imported

        with tempfile.TemporaryDirectory(prefix="lmcache-") as metrics:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
            yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        multiprocessing.set_start_method(start_method, force=True)
        if collecting:
            gc.enable()


def start_engine(config, metadata, connector=None):
    """A running LMCacheEngine from LMCache's own config and metadata; its caller closes it.

    connector: what copies KV between it and a model's cache, a GPUConnectorInterface; None where only its storage is
    used.
    """
    with contained():
        return _in_daemon_thread(lambda: _build(config, metadata, connector))


def _build(config, metadata, connector):
    from lmcache.v1.cache_engine import LMCacheEngine
    from lmcache.v1.token_database import ChunkedTokenDatabase, SegmentTokenDatabase

    database = (SegmentTokenDatabase if config.enable_blending else ChunkedTokenDatabase)(config, metadata)
    # a single process: nobody to broadcast to
    engine = LMCacheEngine(
        config, metadata, database, connector, lambda tensor, source: None, lambda thing, source: thing
    )
    engine.post_init()
    return engine


def _in_daemon_thread(build):
    """What `build` returns. The threads that it starts inherit that a process need not wait for them to end."""
    outcome = Future()

    def run():
        try:
            outcome.set_result(build())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()
