"""The HTML of a report page."""

import base64
import json
import shlex
from dataclasses import dataclass
from datetime import UTC
from html import escape

from replication.claims import Claim, Outcome, Row
from replication.claims_table import outcome_text
from replication.writeup.sources import Source
from replication.writeup.values import VERDICTS, verdict_counts

# Told apart by sign and word as well as by colour
SIGNS = dict(zip(VERDICTS, "✓◐✗–○", strict=True))
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; max-width: 1180px; margin: 0 auto; padding: 1em; }
h1 { margin-bottom: 0; } h2 { margin-top: 2em; border-bottom: 2px solid #444; } h3 { margin: 2em 0 0; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .35em .6em; }
th { border-bottom: 2px solid #444; } td { border-bottom: 1px solid #ddd; } tr:target td { background: #fff6d5; }
tr.source td { background: #eef1f4; font-weight: 600; } thead { display: table-header-group; }
code, pre { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: #f5f5f5; padding: .6em; white-space: pre-wrap; } img { max-width: 100%; height: auto; }
figure { margin: .6em 0; } .verdict { white-space: nowrap; font-weight: 600; } .place { color: #555; }
.reproduced { color: #00547f; } .partly { color: #8a5a00; } .not-reproduced { color: #a33b00; }
.not-testable, .not-run { color: #555; } .fails { color: #a33b00; }
nav ul { columns: 2; padding-left: 1.2em; } summary { cursor: pointer; }
.claims th:nth-child(1) { width: 42%; } .claims th:nth-child(3) { width: 33%; }
@media print { body { font-size: 10px; max-width: none; padding: 0; } code, pre { font-size: 9px; }
  figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } a { color: inherit; text-decoration: none; } }
"""


@dataclass(frozen=True)
class Run:
    """One results folder. place: its path under the root of results. claims: those that it says something about."""

    place: str
    title: str
    provenance: dict
    figure: bytes
    claims: list[Row]


@dataclass(frozen=True)
class Report:
    """sources: the rows of the sources with the claims that were judged with this model, without other models'
    outcomes. missing: claims about this model that nothing was run for. elsewhere: how many claims are about other
    models, or were judged with them alone."""

    model: str
    sources: list[Source]
    missing: list[Row]
    elsewhere: int
    runs: list[Run]


def document(report: Report) -> str:
    """The whole page."""
    name = "results without a model" if report.model == "no-model" else report.model
    judged = list({row.claim.id: row for source in report.sources for row in source.rows}.values())
    parts = [
        f"<h1>{escape(name)}</h1>",
        f"<p>{len(judged)} claims were judged with it: {verdict_counts(judged)}. {len(report.missing)} more are still "
        f"to be run; {report.elsewhere} are about other models, or were judged with them alone.</p>",
        "<p>Every criterion was written down before the run that it judges. Values are means or medians with their "
        "95 % interval (quartiles for times) and the number of examples; a criterion names the part that it looks at. "
        f"{_verdict('reproduced')}: it holds on every data set of this model. {_verdict('partly')}: on some. "
        f"{_verdict('not reproduced')}: on none. {_verdict('not testable')}: nothing to judge, for example because "
        "full prefill answers no better than no passages at all. Undecided: it fails, but its interval holds values "
        "that would have passed. The verdict over all models: "
        "<code>python -m replication claims</code>.</p>",
        _contents(report),
        "<h2>Claims</h2>",
        _claims(report.sources),
        _missing(report),
        "<h2>Results</h2>",
        *[_run(run) for run in report.runs],
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(name)}: results</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _contents(report: Report) -> str:
    links = [f'<li><a href="#{escape(run.place)}">{escape(_short(run))}</a></li>' for run in report.runs]
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def _claims(sources: list[Source]) -> str:
    shown: set[str] = set()
    lines = []
    for source in sources:
        lines.append(f'<tr class="source"><td colspan="4">{source.id}: {escape(source.about)}</td></tr>')
        for row in source.rows:
            anchor = "" if row.claim.id in shown else f' id="{row.claim.id}"'
            shown.add(row.claim.id)
            lines.append(
                f"<tr{anchor}><td>{escape(row.claim.statement)}<br><code>{row.claim.id}</code>{_fixed(row.claim)}</td>"
                f"<td><code>{escape(row.claim.condition)}</code></td>"
                f"<td>{'<br>'.join(_outcome(o, row) for o in row.outcomes)}</td><td>{_verdict(row.verdict)}</td></tr>"
            )
    head = "<thead><tr><th>claim</th><th>criterion</th><th>result</th><th>verdict</th></tr></thead>"
    return f'<table class="claims">{head}<tbody>{"".join(lines)}</tbody></table>'


def _fixed(claim: Claim) -> str:
    if claim.fixed is None:
        return ""
    return f' <span class="place">fixed {claim.fixed.astimezone(UTC):%Y-%m-%d %H:%M} UTC</span>'


def _outcome(outcome: Outcome, row: Row) -> str:
    holds = {True: "holds", False: "fails", None: "untested"}[outcome.passed]
    text = escape(outcome_text(outcome, row.claim))
    return f'<span class="place">{escape(outcome.dataset)}:</span> {text}, <span class="{holds}">{holds}</span>'


def _missing(report: Report) -> str:
    if not report.missing:
        return ""
    by_experiment: dict[str, list[Row]] = {}
    for row in report.missing:
        by_experiment.setdefault(row.claim.experiment, []).append(row)
    lines = []
    for experiment, rows in by_experiment.items():
        command = f"python -m replication run {experiment} --model {report.model} --out results"
        lines.append(f'<tr class="source"><td colspan="2"><code>{escape(command)}</code></td></tr>')
        for row in rows:
            about = f"{escape(row.claim.statement)}<br><code>{row.claim.id}</code>, {row.claim.row}"
            lines.append(f"<tr><td>{about}</td><td><code>{escape(row.claim.criterion)}</code></td></tr>")
    head = "<thead><tr><th>claim</th><th>criterion</th></tr></thead>"
    return f"<h2>Not run yet</h2><table>{head}<tbody>{''.join(lines)}</tbody></table>"


def _run(run: Run) -> str:
    image = base64.b64encode(run.figure).decode()
    links = [
        f'<a href="#{row.claim.id}" class="{_css(row.verdict)}">{SIGNS[row.verdict]} {row.claim.id}</a>'
        for row in run.claims
    ]
    return "\n".join(
        [
            f'<section id="{escape(run.place)}">',
            f"<h3>{escape(run.title)}</h3>",
            f'<p class="place">{escape(_short(run))}</p>',
            f'<figure><img alt="{escape(run.title)}" src="data:image/png;base64,{image}"></figure>',
            f"<pre>{escape(shlex.join(run.provenance['command']))}</pre>",
            f"<p>Claims: {', '.join(links) or 'none are judged on it'}.</p>",
            _origin(run.provenance),
            "</section>",
        ]
    )


def _origin(provenance: dict) -> str:
    starts = [provenance, *provenance.get("resumed", [])]
    when = "".join(f"<li>{escape(start['started'])}, commit {_commit(start['git'])}</li>" for start in starts)
    facts = {key: provenance[key] for key in ("config", "machine", "python", "versions")}
    text = escape(json.dumps(facts, indent=1, ensure_ascii=False))
    return f"<details><summary>When, code, settings and machine</summary><ul>{when}</ul><pre>{text}</pre></details>"


def _commit(git: dict | None) -> str:
    return "unknown" if git is None else escape(git["commit"]) + " with changes" * bool(git["dirty"])


def _short(run: Run) -> str:
    """`ttft · synthetic`, with what stands before the model where that is not the root."""
    *before, _, experiment, dataset = run.place.split("/")
    return " · ".join([experiment, dataset, *before])


def _verdict(verdict: str) -> str:
    return f'<span class="verdict {_css(verdict)}">{SIGNS[verdict]} {verdict}</span>'


def _css(verdict: str) -> str:
    return verdict.replace(" ", "-")
