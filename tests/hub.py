"""A stand-in for the hub, so that what is made of its rows can be tested offline."""

import pytest


def hub_answers(monkeypatch: pytest.MonkeyPatch, table=None, file: str = "") -> None:
    """Replaces the hub's calls: they answer with a table or the path of a file, or raise it where it is an error."""
    monkeypatch.delenv("REPLICATION_DATA", raising=False)

    class Api:
        def dataset_info(self, path):
            if isinstance(table, Exception):
                raise table
            return type("Info", (), {"sha": "abc123"})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *names, **request: file)
    monkeypatch.setattr("datasets.load_dataset", lambda **request: table)
