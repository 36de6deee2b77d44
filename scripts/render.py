"""Writes the numbers of the documents, between their markers, and those of the paper, from results/.

`--check` only says which of them differ.
"""

import json
import re
import sys
from pathlib import Path

from replication.claims import evaluate
from replication.claims_table import outcome_text
from replication.writeup import tables
from replication.writeup.caches import caches
from replication.writeup.effects import EFFECTS, effect
from replication.writeup.paper import numbers
from replication.writeup.runs import runs
from replication.writeup.tables import Table
from replication.writeup.values import verdict_counts

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "DEVIATIONS.md", "experiments/README.md")
NUMBERS = "paper/numbers.json"


def verdicts(results: Path) -> str:
    """How many claims came out how, and where those that did not come out everywhere failed."""
    rows = evaluate(results)
    failed = [
        [
            f"`{row.claim.id}`: {row.claim.statement}",
            row.claim.criterion,
            "<br>".join(
                f"{o.model}, {o.dataset}: {outcome_text(o, row.claim)}" for o in row.outcomes if o.passed is False
            ),
        ]
        for row in rows
        if row.verdict in ("partly", "not reproduced")
    ]
    listed = Table(["claim", "criterion", "failed with"], failed).markdown()
    undecided = sum(row.undecided for row in rows)
    return (
        f"{len(rows)} claims: {verdict_counts(rows)}. Of those not reproduced {undecided} are undecided: their "
        f"intervals hold values that would have passed. Those that failed somewhere:\n\n{listed}"
    )


BLOCKS = {
    "quality": lambda results: tables.quality(results).markdown(),
    "budget": lambda results: tables.budget(results).markdown(),
    "answers": lambda results: tables.answers(results).markdown(),
    "sweeps": lambda results: tables.sweeps(results).markdown(),
    "power": lambda results: tables.power(results).markdown(),
    "faults": lambda results: tables.faults(results).markdown(),
    "ttft": lambda results: tables.ttft(results).markdown(),
    "memory": lambda results: tables.memory(results).markdown(),
    "caches": lambda results: caches(results).markdown(),
    "runs": lambda results: runs(results).markdown(),
    "verdicts": verdicts,
    **{f"effect {name}": lambda results, name=name: effect(results, name) for name in EFFECTS},
}


def rendered(text: str, results: Path) -> str:
    """The text of a document with every marked block filled in."""
    return re.sub(
        r"(<!-- ([a-z][a-z -]*) -->\n).*?(<!-- /\2 -->)",
        lambda marked: marked[1] + BLOCKS[marked[2]](results) + marked[3],
        text,
        flags=re.DOTALL,
    )


def outputs(results: Path) -> dict[str, str]:
    """Every written file, by its path in the repository, as `results` make it."""
    documents = {name: rendered((ROOT / name).read_text(), results) for name in DOCUMENTS}
    return documents | {NUMBERS: json.dumps(numbers(results), indent=1, ensure_ascii=False) + "\n"}


if __name__ == "__main__":
    differing = {
        name: text
        for name, text in outputs(ROOT / "results").items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    }
    if "--check" in sys.argv[1:]:
        sys.exit(f"{', '.join(differing)} differ from results/: run `bash scripts/paper.sh`" if differing else 0)
    for name, text in differing.items():
        (ROOT / name).write_text(text)
