"""Copies of the data sets on the hub, for those who are online; the revision goes into the results."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replication.errors import ReplicationError


def hub_table(path: str, split: str, file: str, config: str | None = None) -> tuple[Iterable[dict], dict]:
    """Rows of a hub data set, and the source as results record it.

    file: the local file that would do as well, for the message. Raises ReplicationError when the hub is out of reach.
    """
    from datasets import load_dataset  # slow to import, and not needed for a local file

    with _reached(path, file):
        revision = _revision(path)
        rows = load_dataset(path=path, name=config, split=split, revision=revision)
    names = {"config": config} if config else {}
    return rows, {"source": path, **names, "split": split, "revision": revision}


def hub_file(path: str, name: str, file: str) -> tuple[bytes, dict]:
    """The bytes of the file `name` of a hub data set, and the source; errors as for `hub_table`."""
    from huggingface_hub import hf_hub_download

    with _reached(path, file):
        revision = _revision(path)
        content = Path(hf_hub_download(path, name, repo_type="dataset", revision=revision)).read_bytes()
    return content, {"source": f"{path}/{name}", "revision": revision}


def _revision(path: str) -> str:
    from huggingface_hub import HfApi

    return HfApi().dataset_info(path).sha


@contextmanager
def _reached(path: str, file: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub clients' errors share no base class
        raise ReplicationError(
            f"cannot fetch {path} from the hub ({type(error).__name__}); give a folder that holds {file} with "
            "--data-dir or REPLICATION_DATA, or go online"
        ) from error
