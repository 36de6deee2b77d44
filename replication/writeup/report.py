"""results/<model>/report.html: one page for each model, with every claim about it and every figure with its command.

A page holds all that it shows, needs no script and can be printed.
"""

from fnmatch import fnmatch
from pathlib import Path

from replication.atomic import write_atomic
from replication.claims import Row, evaluate, read_json
from replication.errors import ReplicationError
from replication.runner import find_experiments
from replication.writeup.page import Report, Run, document
from replication.writeup.sources import sources


def write_reports(root: Path) -> list[Path]:
    """Writes every page, and returns the files."""
    made = pages(root)
    for page, text in made.items():
        write_atomic(page, text.encode())
    return list(made)


def pages(root: Path) -> dict[Path, str]:
    """File and text of the page of every model that has results under `root`; ReplicationError if there is none."""
    models = sorted({path.parts[-4] for path in root.glob("*/*/*/summary.json")})
    if not models:
        raise ReplicationError(f"{root} holds no results: run an experiment with --out {root}")
    rows = evaluate(root)
    return {root / model / "report.html": document(_report(root, model, rows)) for model in models}


def _report(root: Path, model: str, rows: list[Row]) -> Report:
    own = [Row(row.claim, [o for o in row.outcomes if o.model == model]) for row in rows]
    judged = [row for row in own if row.outcomes or row.claim.reason]
    missing = [row for row in rows if not (row.outcomes or row.claim.reason) and _is_about(row, model)]
    return Report(
        model=model,
        sources=[source for source in sources(judged) if source.rows],
        missing=missing,
        elsewhere=len(rows) - len(judged) - len(missing),
        runs=[_run(root, path, judged) for path in sorted(root.glob(f"**/{model}/*/*/summary.json"))],
    )


def _is_about(row: Row, model: str) -> bool:
    """Where a claim names no model it is about the one that its experiment takes by itself."""
    default = find_experiments()[row.claim.experiment].Config().model
    return fnmatch(model, row.claim.where.get("model", default))


def _run(root: Path, summary: Path, judged: list[Row]) -> Run:
    folder = summary.parent
    figure = folder / "figure.png"
    if not figure.exists():
        raise ReplicationError(f"{folder} has no figure, its run is not finished; the command that began it resumes it")
    return Run(
        place=str(folder.relative_to(root)),
        title=find_experiments()[folder.parent.name].TITLE,
        provenance=read_json(folder / "provenance.json"),
        figure=figure.read_bytes(),
        claims=[row for row in judged if any(outcome.folder == folder for outcome in row.outcomes)],
    )
