"""The default data: encyclopedia-like passages about invented institutions, generated offline from a seed.

All passages of an example state the same kinds of facts, so every wrong passage offers a wrong answer of the right
kind. 'synthetic' asks for a fact of one passage. 'synthetic-2hop' asks for a fact of an institution that the question
does not name: one passage names it (the bridge), another states the fact.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from replication.data.example import DATASETS, Dataset, Passage, RagExample
from replication.data.invented import Names
from replication.errors import ReplicationError

DISTRACTORS = 4


@dataclass(frozen=True)
class Attribute:
    """A kind of fact: how its value is drawn, how it is asked ({e}: the institution), and its wordings.

    In a wording {s} is the institution, in full where the passage first names it, and {v} the value.
    """

    draw: Callable[[Names], str]
    question: str
    wordings: tuple[str, ...]


ATTRIBUTES = (
    Attribute(
        Names.place,
        "In which city was {e} founded?",
        ("{s} was founded in the city of {v}.", "the city where {s} was founded is {v}."),
    ),
    Attribute(
        Names.person,
        "Who founded {e}?",
        ("{s} owes its existence to {v}, who founded it.", "the founder of {s} was {v}."),
    ),
    Attribute(
        Names.year,
        "In which year was {e} founded?",
        ("the charter of {s} dates from its foundation in {v}.", "founded in {v}, {s} kept its first charter."),
    ),
    Attribute(
        Names.substance,
        "Which mineral is {e} best known for?",
        ("{s} is best known for its work on the mineral {v}.", "a mineral called {v} made {s} well known."),
    ),
    Attribute(
        Names.person,
        "Who is the director of {e}?",
        ("the present director of {s} is {v}.", "{s} is led today by its director, {v}."),
    ),
    Attribute(
        Names.place,
        "On which river does {e} stand?",
        ("{s} stands on the banks of the river {v}.", "the river {v} flows past the main hall of {s}."),
    ),
)

# Never asked: they only make passages longer, once all attributes are used.
DETAILS = (
    "a fire once destroyed the library of {s}, and {person} paid for a new one.",
    "the gardens of {s} were laid out by {person} with seeds brought from {place}.",
    "{s} lends its collection of {substance} lamps to schools in {place}.",
    "every spring {s} sends a party of students to survey the hills near {place}.",
    "a portrait of {person} hangs over the main stair of {s}.",
    "the bells of {s} were cast from an alloy of copper and {substance}.",
)


@dataclass(frozen=True)
class Relation:
    """How one institution points to another: how a question describes the other one, and the wordings."""

    described: str
    wordings: tuple[str, ...]


RELATIONS = (
    Relation("the oldest rival of {e}", ("the oldest rival of {s} is the {v}.", "{s} has one old rival, the {v}.")),
    Relation("the partner of {e}", ("{s} shares a roof with its partner, the {v}.", "the partner of {s} is the {v}.")),
    Relation("the sponsor of {e}", ("the sponsor of {s} is the {v}.", "{s} is paid for by its sponsor, the {v}.")),
)
NOUNS = ("Institute", "Academy", "Observatory", "Museum", "Foundry", "Conservatory")


def synthetic(n: int, seed: int, passages: int = 6, sentences: int = 5) -> tuple[list[RagExample], dict]:
    """n single-hop examples; each passage has that many sentences of about 17 SmolLM2 tokens."""
    return _generate("synthetic", n, seed, passages, sentences, hops=1)


def synthetic_2hop(n: int, seed: int, passages: int = 6, sentences: int = 5) -> tuple[list[RagExample], dict]:
    """n two-hop examples; one sentence of each passage names the next institution in a ring of all passages."""
    return _generate("synthetic-2hop", n, seed, passages, sentences, hops=2)


DATASETS["synthetic"] = Dataset(synthetic, supports=1)
DATASETS["synthetic-2hop"] = Dataset(synthetic_2hop, supports=2)


def _generate(name: str, n: int, seed: int, passages: int, sentences: int, hops: int) -> tuple[list[RagExample], dict]:
    if sentences < hops:
        raise ReplicationError(f"data set '{name}' needs at least {hops} sentences a passage, got {sentences}")
    # A string seeds the generator the same way in every process and Python version, and example i knows nothing of n.
    ids = [f"{name}-{seed}-{i}" for i in range(n)]
    return [_example(id, random.Random(id), passages, sentences, hops) for id in ids], {"source": "generated"}


def _example(id: str, rng: random.Random, count: int, sentences: int, hops: int) -> RagExample:
    """Institution 0 is the one the question names; institution hops-1 has the answer.

    What the question needs is drawn first, so the same question is asked whatever the number of passages.
    """
    names = Names(rng)
    asked, relation, noun = rng.choice(ATTRIBUTES), rng.choice(RELATIONS), rng.choice(NOUNS)
    plain = sentences - (hops - 1)
    others = rng.sample([a for a in ATTRIBUTES if a is not asked], min(plain, len(ATTRIBUTES)) - 1)
    kinds = [asked, *others]
    titles, values = [], []
    for _ in range(count):
        titles.append(f"{names.word('institution')} {noun}")
        values.append([kind.draw(names) for kind in kinds])

    written = []
    for k, title in enumerate(titles):
        facts = [(rng.choice(kind.wordings), value) for kind, value in zip(kinds, values[k], strict=True)]
        if hops == 2:
            # A ring: every institution is some other one's bridge, so being named twice gives nothing away.
            facts.append((rng.choice(relation.wordings), titles[(k + 1) % count]))
        written.append(Passage(title, describe(title, facts, sentences, rng, names)))

    subject = f"the {titles[0]}"
    place = rng.sample(range(count), count)
    wrong = [row[0] for k, row in enumerate(values) if k != hops - 1]
    return RagExample(
        id=id,
        passages=tuple(written[k] for k in place),
        question=asked.question.format(e=subject if hops == 1 else relation.described.format(e=subject)),
        answers=(values[hops - 1][0],),
        distractors=_distractors(wrong, asked, names),
        supports=tuple(place.index(k) for k in range(hops)),
    )


def _distractors(wrong: list[str], asked: Attribute, names: Names) -> tuple[str, ...]:
    """Always DISTRACTORS of them, so chance is the same for every number of passages: values from the other passages
    first, then values that stand nowhere."""
    extra = [asked.draw(names) for _ in range(DISTRACTORS - len(wrong))]
    return tuple(wrong[:DISTRACTORS] + extra)


def describe(title: str, facts: list[tuple[str, str]], sentences: int, rng: random.Random, names: Names) -> str:
    """The facts in random order, then details up to that many sentences; the first sentence names the title."""
    rng.shuffle(facts)
    order = rng.sample(DETAILS, len(DETAILS))
    details = [(order[k % len(order)], "") for k in range(sentences - len(facts))]
    lines = []
    for wording, value in facts + details:
        subject = f"the {title.split()[-1].lower()}" if lines else f"the {title}"
        slots = {s: getattr(names, s)() for s in ("person", "place", "substance") if f"{{{s}}}" in wording}
        line = wording.format(s=subject, v=value, **slots)
        lines.append(line[0].upper() + line[1:])
    return " ".join(lines)
