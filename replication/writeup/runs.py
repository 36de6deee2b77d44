"""Every experiment with its committed runs and how long they took."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

from replication.claims import load_claims
from replication.runner import find_experiments
from replication.writeup.tables import Table
from replication.writeup.values import noted_summaries


def runs(root: Path) -> Table:
    """Each experiment, how many claims it judges, and where it was run, with minutes where its end was noted."""
    judged = Counter(claim.experiment for claim in load_claims())
    rows = [
        [
            f"[`{name}`]({name}.py)",
            module.TITLE,
            str(judged[name]),
            "<br>".join(_run(*run) for run in noted_summaries(root, name)),
        ]
        for name, module in find_experiments().items()
    ]
    return Table(["experiment", "what", "claims", "runs in `results/`"], rows)


def _run(summary: Path, note: str) -> str:
    """`smollm2-135m, synthetic: 12 min`; a resumed run's time is not known. Code that is in no commit is said."""
    provenance = json.loads(summary.with_name("provenance.json").read_text())
    changed = " (code with uncommitted changes)" * bool((provenance["git"] or {}).get("dirty"))
    place = f"{summary.parts[-4]}, {summary.parts[-2]}{note}{changed}"
    if "finished" not in provenance or "resumed" in provenance:
        return place
    begun, ended = (datetime.fromisoformat(provenance[key]) for key in ("started", "finished"))
    return f"{place}: {max(1, round((ended - begun).total_seconds() / 60))} min"
