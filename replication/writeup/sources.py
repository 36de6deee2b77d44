"""The rows of the two sources, each with the claims about it."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from replication.claims import Row


@dataclass(frozen=True)
class Source:
    """about: what the source says."""

    id: str
    about: str
    rows: list[Row]


def sources(rows: list[Row]) -> list[Source]:
    """Every row of the paper (A-..) and the article (S-..); a claim about two rows stands under both."""
    known = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text())
    cited = {id: [row for row in rows if id in row.claim.row.replace(" ", "").split(",")] for id in known}
    return [Source(id, rows=cited[id], **entry) for id, entry in known.items()]
