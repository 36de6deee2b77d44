"""What a provider's prompt cache does for one model on one date, from dated YAML files.

>>> from datetime import date
>>> rules = load_rules("anthropic", "claude-sonnet-4-6", date(2026, 4, 1))
>>> rules["minimum_tokens"], str(rules.as_of["minimum_tokens"])
(2048, '2026-03-01')
>>> load_rules("anthropic", "claude-sonnet-4-6", date(2026, 11, 1))["minimum_tokens"]
1024
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from replication.errors import ReplicationError

PROVIDERS = ("anthropic", "openai", "gemini")
_FOLDER = Path(__file__).parent / "rules"
# claude-sonnet-4-5-20250929, claude-3-5-haiku-latest and claude-sonnet-4-0 are other names of what the files list
_ALIAS = re.compile(r"-(20\d{6}|latest|0)$")


@dataclass(frozen=True)
class Rules:
    """model: as the file names it; values: fact -> value; as_of: fact -> the date as of which its value is known to
    hold; source: fact -> where that is from."""

    model: str
    values: Mapping[str, Any]
    as_of: Mapping[str, date]
    source: Mapping[str, str]

    def __getitem__(self, fact: str) -> Any:
        return self.values[fact]


def load_rules(provider: str, model: str, on: date) -> Rules:
    """The rules for `model` on the date `on`: of each fact, the latest value known until then.

    Errors: ReplicationError for a model that has no rules on that date, with the nearest one that has.
    """
    facts = _facts(provider)
    if on < facts[0]["as_of"]:
        raise ReplicationError(f"the rules of {provider} begin on {facts[0]['as_of']}: {on} is before them")
    known = [entry for entry in facts if entry["as_of"] <= on]
    name = _ALIAS.sub("", model)
    if not any(name in entry.get("models", {}) for entry in known):
        raise ReplicationError(_no_rules(provider, name, on, known, facts))
    values, as_of, source = {}, {}, {}
    for part in (lambda entry: entry.get("all", {}), lambda entry: entry.get("models", {}).get(name, {})):
        for entry in known:
            values |= part(entry)
            as_of |= dict.fromkeys(part(entry), entry["as_of"])
            source |= dict.fromkeys(part(entry), entry["source"])
    return Rules(name, values, as_of, source)


@cache
def _facts(provider: str) -> list[dict]:
    if provider not in PROVIDERS:
        raise ReplicationError(f"no rules of provider '{provider}'; known: {', '.join(PROVIDERS)}")
    return sorted(yaml.safe_load((_FOLDER / f"{provider}.yaml").read_text())["facts"], key=lambda entry: entry["as_of"])


def _no_rules(provider: str, model: str, on: date, known: list[dict], facts: list[dict]) -> str:
    first = next((entry["as_of"] for entry in facts if model in entry.get("models", {})), None)
    models = {model for entry in known for model in entry.get("models", {})}
    nearest = difflib.get_close_matches(model, models, n=1, cutoff=0)[0]
    problem = f"no {provider} model '{model}' in the rules of {on}"
    return problem + (f", which begin on {first} for it" if first else "") + f"; the nearest model is {nearest}"
