"""Writing files so that a reader sees the old content or the new one, never a part, and no two runs write at once."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from replication.errors import ReplicationError

_TEMP_GLOB = f".*.{'[0-9a-f]' * 16}.partial"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError of writing `path` into a ReplicationError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ReplicationError(
                f"no disk space left to write {path}; free some space or choose another folder, then run again"
            ) from error
        raise ReplicationError(f"cannot write {path}: {error.strerror or error}") from error


def write_atomic(path: Path, data: bytes | bytearray) -> None:
    """Replaces the file `path` by `data`, on disk before it is visible.

    ReplicationError when it cannot be written; no partial file stays behind, and an old `path` stays as it was.
    """
    # In the same folder, because a rename is atomic within one file system only.
    temp = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with explained(path):
            with open(temp, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Makes `folder` and holds it for this process, until it ends; ReplicationError while another one holds it."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ReplicationError(
                f"another run is writing to {folder}; wait for it or choose another --out"
            ) from error
        yield
    finally:
        os.close(handle)


def remove_old_partials(folder: Path, older_than_s: float = 3600.0) -> None:
    """Deletes what killed processes left of `write_atomic` in `folder`; younger ones may still be in the making."""
    for temp in folder.glob(_TEMP_GLOB):
        # Another process may be cleaning too.
        with suppress(OSError):
            if temp.stat().st_mtime < time.time() - older_than_s:
                temp.unlink()
