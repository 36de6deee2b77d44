"""Writes docs/families.md: every family of the test matrix, exact or refused, as its tiny random model turns out."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from families import FAMILIES, MATRIX, REFUSED, WINDOW, tiny_lm  # noqa: E402
from prefills import a_prompt, assert_full, run  # noqa: E402

from replication.errors import ReplicationError  # noqa: E402
from replication.model import wrap  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
TEXT = """# Model families

On which decoders of transformers chunk reuse is exact, and which are refused at load. *Exact* means that keys moved to
another position equal those that the model computes there, and that a blend with everything recomputed equals the
model's own full prefill, logits and KV (fp32, tolerance 1e-4), beyond a sliding window too; with less recomputed it
equals a dense reference that shares none of the fusion.

Nothing is decided by name: a model is asked when it is loaded (`replication/rotary_proof.py`), so one that is not
listed works too, or is refused with its reason (`replication/refusals.py`). The tables are made by
`python scripts/render_families.py` from tiny random models (`tests/families.py`), on which the tests run every
invariant: in every family with `cacheblend-paper` at least, or with `full-reuse` where it is about reuse alone, and
with all methods that it is about by `bash scripts/test.sh -m slow tests/test_fuse.py tests/test_families.py`. Only that
recomputed rows see *all* earlier tokens is left to families without a sliding window, which hides some.
None of the exact ones needs an option beyond its directory or hub id:

    python -m replication run quality_vs_ttft --model DIRECTORY_OR_ID

## Exact

{exact}

dtype and device are the model's. Prompts are prefilled one by one, because each has other rows to recompute; prefills
of equal length are joined into a batch by `replication.decode.batched`, and go on together.

## Refused

{refused}
"""


def verdict(name: str) -> str:
    """Of a family that is not refused; AssertionError where its blend is not full prefill."""
    model = wrap(name, tiny_lm(name))
    prompt = a_prompt((3, 5 * WINDOW, 2 * WINDOW), question=WINDOW + 3)
    assert_full(model, prompt, run(model, "cacheblend-paper", prompt))
    if model.context_length == model.config.max_position_embeddings:
        return "exact"
    return (
        "exact up to the prompt length at which its frequencies change; longer prompts are refused, since stored keys "
        "cannot be moved there: it would need keys stored before rotation"
    )


def refusal(name: str) -> tuple[str, str]:
    """Why the family is refused, and what it would need."""
    lm = tiny_lm(name)
    try:
        wrap(name, lm)
    except ReplicationError as error:
        reason, needed = str(error).removeprefix(f"{type(lm).__name__} is refused: ").split(". It would need ")
        return reason, needed
    raise AssertionError(f"{name} is not refused")


def table(*rows: tuple[str, ...]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def rendered() -> str:
    exact = [(MATRIX[name].label, MATRIX[name].traits, verdict(name)) for name in FAMILIES]
    reasons: dict[tuple[str, str], list[str]] = {}
    for name in REFUSED:
        reasons.setdefault(refusal(name), []).append(f"{MATRIX[name].label} ({MATRIX[name].traits})")
    refused = [(", ".join(labels), f"refused: {reason}", needed) for (reason, needed), labels in reasons.items()]
    return TEXT.format(
        exact=table(("family", "what sets it apart", "verdict"), *exact),
        refused=table(("family", "verdict", "what it would need"), *refused),
    )


if __name__ == "__main__":
    PAGE.write_text(rendered())
