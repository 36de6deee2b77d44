"""A run's results folder: provenance, records that a killed run resumes from, and a summary.

A record is one JSON object. Its wall-clock figures all stand in a dict under the key "seconds", so that two runs
can be compared without them (`without_seconds`).
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from replication.atomic import explained, remove_old_partials, write_atomic
from replication.errors import ReplicationError
from replication.provenance import now, provenance

_ABSENT = object()


def jsonable(value: Any, digits: int | None = None) -> Any:
    """`value` as strict JSON holds it: NaN and infinities become None; tuples, arrays and tensors become lists.

    digits: significant digits that floats are rounded to; None keeps them exact. TypeError for other types.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if hasattr(value, "tolist"):  # numpy and torch arrays and scalars
        return jsonable(value.tolist(), digits)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item, digits) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def write_json_atomic(path: str | Path, value: Any, digits: int | None = None) -> None:
    """Writes `jsonable(value, digits)` with sorted keys, whole or not at all; ReplicationError when it cannot."""
    text = json.dumps(jsonable(value, digits), indent=2, sort_keys=True, allow_nan=False)
    write_atomic(Path(path), (text + "\n").encode())


def read_records(path: str | Path) -> list[dict]:
    """The records of a results folder or of its records.jsonl, without a torn last line; changes nothing.

    ReplicationError if there is no such file, or if a line before the last one is damaged.
    """
    path = Path(path)
    file = path / "records.jsonl" if path.is_dir() else path
    try:
        return _parse(file, file.read_bytes())[0]
    except OSError as error:
        raise ReplicationError(f"cannot read {file}: {error.strerror}; run the experiment that writes it") from error


def without_seconds(records: Iterable[dict]) -> list[dict]:
    """The records without their wall-clock figures."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class RunFolder:
    """The results folder `path` of one run with `config`, new or taken up where an earlier run of it ended.

    records: all records, the earlier run's first. ReplicationError if the folder belongs to another config, or
    cannot be written.
    """

    def __init__(self, path: str | Path, config: Mapping[str, Any]):
        self.path = Path(path)
        self.config = jsonable(config)
        self._records_file = self.path / "records.jsonl"
        self._provenance_file = self.path / "provenance.json"
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        remove_old_partials(self.path)
        self._resuming = self._provenance_file.exists()
        if self._resuming:
            self._check_config()
        elif self._records_file.exists():
            raise ReplicationError(f"{self.path} holds records of an unknown config; choose another --out or delete it")
        else:
            write_json_atomic(self._provenance_file, {"config": self.config, **provenance()})
        self.records = self._load()

    def done(self, key_fields: Sequence[str]) -> set[tuple]:
        """The values of `key_fields` in each record that has them all: what a resumed run need not do again."""
        return {
            tuple(_hashable(record[field]) for field in key_fields)
            for record in self.records
            if all(field in record for field in key_fields)
        }

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record to the file at once, floats exact; ReplicationError when the disk is full."""
        if self._resuming:
            self._note_resumption()
        record = jsonable(record)
        rest = memoryview((json.dumps(record, allow_nan=False) + "\n").encode())
        # Unbuffered, because a buffer that could not be written would be tried again on closing.
        with explained(self._records_file), open(self._records_file, "ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:
                # Else a caller that goes on would append to half a line.
                with suppress(OSError):
                    os.truncate(self._records_file, size)
                raise
        self.records.append(record)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json: sorted keys, floats of 6 significant digits, so that equal results are equal files."""
        write_json_atomic(self.path / "summary.json", summary, digits=6)

    def note_finished(self) -> None:
        """Writes the time into provenance.json, beside this process's start; one that added no record leaves it."""
        if not self._resuming:
            content = json.loads(self._provenance_file.read_bytes())
            content.get("resumed", [content])[-1]["finished"] = now()
            write_json_atomic(self._provenance_file, content)

    def _check_config(self) -> None:
        try:
            old = json.loads(self._provenance_file.read_bytes())["config"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReplicationError(
                f"{self._provenance_file} is damaged; choose another --out or delete {self.path}"
            ) from error
        found = _first_difference(old, self.config)
        if found is not None:
            field, before, now = found
            raise ReplicationError(
                f"{self.path} was made with {field} = {before}, not {now}; choose another --out or delete it"
            )

    def _load(self) -> list[dict]:
        if not self._records_file.exists():
            return []
        with explained(self._records_file):
            data = self._records_file.read_bytes()
            records, good = _parse(self._records_file, data)
            if good < len(data):
                os.truncate(self._records_file, good)
        return records

    def _note_resumption(self) -> None:
        """From here on records may come from other code or another machine, and provenance.json must say so."""
        content = json.loads(self._provenance_file.read_bytes())
        content.setdefault("resumed", []).append(provenance())
        write_json_atomic(self._provenance_file, content)
        self._resuming = False


def _parse(file: Path, data: bytes) -> tuple[list[dict], int]:
    """The records, and the number of bytes up to the end of the last good line."""
    records, good = [], 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
            good += len(line)
        elif number < len(lines):
            raise ReplicationError(f"line {number} of {file} is damaged; restore the file or delete its folder")
    return records, good


def _hashable(value: Any) -> Any:
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value


def _first_difference(old: Any, new: Any, field: str = "") -> tuple[str, str, str] | None:
    """(dotted field, old value, new value) of the first field, in alphabetical order, that differs."""
    if old == new:
        return None
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return field or "config", _shown(old), _shown(new)
    for key in sorted(old.keys() | new.keys()):
        inside = f"{field}.{key}" if field else key
        found = _first_difference(old.get(key, _ABSENT), new.get(key, _ABSENT), inside)
        if found is not None:
            return found
    return None


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)
