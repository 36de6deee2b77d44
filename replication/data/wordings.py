"""Other ways to ask for what `synthetic` asks for: in other words, negated, and as a further question of a chat."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Of one attribute ({e}: the institution). near: the attribute whose question reads most like its own, an index
    into ATTRIBUTES."""

    same: tuple[str, ...]
    negated: str
    further: str
    near: int


WORDINGS = (  # in the order of ATTRIBUTES
    Wording(
        ("What city was {e} founded in?", "{e} was founded in which city?"),
        "In which city was {e} not founded?",
        "And in which city was it founded?",
        near=2,
    ),
    Wording(
        ("Who was the founder of {e}?", "By whom was {e} founded?"),
        "Who did not found {e}?",
        "And who founded it?",
        near=4,
    ),
    Wording(
        ("What year was {e} founded in?", "When was {e} founded?"),
        "In which year was {e} not founded?",
        "And in which year was it founded?",
        near=0,
    ),
    Wording(
        ("What mineral is {e} most famous for?", "{e} is best known for which mineral?"),
        "Which mineral is {e} not known for?",
        "And which mineral is it best known for?",
        near=5,
    ),
    Wording(
        ("Who directs {e}?", "What is the name of the director of {e}?"),
        "Who is not the director of {e}?",
        "And who is its director?",
        near=1,
    ),
    Wording(
        ("Which river does {e} stand on?", "{e} stands on which river?"),
        "On which river does {e} not stand?",
        "And on which river does it stand?",
        near=0,
    ),
)
