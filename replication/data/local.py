"""Files of real data that are not part of the package and lie in a data directory."""

import hashlib
import os
from pathlib import Path

from replication.errors import ReplicationError

_WHERE = "give a folder that holds it with --data-dir or REPLICATION_DATA"


def read_local(file: str, data_dir: str | Path | None, origin: str = "") -> tuple[bytes, dict]:
    """The bytes of a file in the data directory, and its name and SHA-256 as results record them.

    data_dir: None or empty for the environment variable REPLICATION_DATA. origin: where the file comes from, for the
    message. Raises ReplicationError when there is no data directory or the file cannot be read.
    """
    where = _WHERE + (f" ({origin})" if origin else "")
    folder = data_dir or os.environ.get("REPLICATION_DATA")
    if not folder:
        raise ReplicationError(f"{file} is not part of the package: {where}")
    try:
        content = Path(folder, file).read_bytes()
    except OSError as error:
        raise ReplicationError(
            f"cannot read {file} in the data directory {folder} ({error.strerror}): {where}"
        ) from error
    return content, {"source": file, "file_sha256": hashlib.sha256(content).hexdigest()}
