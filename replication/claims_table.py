"""The claims and their verdicts as a text table."""

import textwrap
from itertools import zip_longest

from replication.claims import Claim, Outcome, Row

_HEAD = ("claim", "row", "statement and criterion", "result", "verdict")
_STATEMENT_WIDTH = 46
_RULE = "-"


def table(rows: list[Row]) -> str:
    """Aligned columns; a claim takes as many lines as its statement or its results need."""
    if not rows:
        return "no claims"
    cells = [[[title] for title in _HEAD], *(_cells(row) for row in rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(_HEAD))]
    blocks = [_block(row, widths) for row in cells]
    rule = "  ".join(_RULE * width for width in widths)
    return "\n".join([blocks[0], rule, *"\n\n".join(blocks[1:]).split("\n")])


def _cells(row: Row) -> list[list[str]]:
    claim = row.claim
    statement = [
        *textwrap.wrap(claim.statement, _STATEMENT_WIDTH),
        *textwrap.wrap(f"({claim.condition})", _STATEMENT_WIDTH),
    ]
    results = [line for outcome in row.outcomes for line in _result(outcome, claim)]
    return [[claim.id], [claim.row], statement, results or [""], [row.verdict]]


def _result(outcome: Outcome, claim: Claim) -> list[str]:
    passed = {True: "pass", False: "FAIL", None: "-"}[outcome.passed]
    return [f"{outcome.model} · {outcome.dataset}", f"  {outcome_text(outcome, claim)}  {passed}"]


def outcome_text(outcome: Outcome, claim: Claim) -> str:
    return estimate_text(outcome.estimate, claim.terms[0][0]) + ", undecided" * outcome.undecided


def estimate_text(estimate: dict | None, main_field: str) -> str:
    """e.g. `0.41 [0.35, 0.48] n=100`, and `p=0.02` of a comparison, adjusted; the value is the mean or median, else the
    field that the criterion names."""
    if estimate is None:
        return "not in the summary"
    value = next((estimate[name] for name in ("mean", "median", main_field) if estimate.get(name) is not None), None)
    if value is None:
        return "not testable here"
    text = f"{value:.3g}"
    if estimate.get("low") is not None and estimate.get("high") is not None:
        text += f" [{estimate['low']:.3g}, {estimate['high']:.3g}]"
    text += f" n={estimate['n']}" if "n" in estimate else ""
    return text + (f" p={estimate['p_holm']:.1g}" if "p_holm" in estimate else "")


def _block(row: list[list[str]], widths: list[int]) -> str:
    lines = zip_longest(*row, fillvalue="")
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
