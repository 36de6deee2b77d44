"""What is asked over the passages: the wording of the prompt, and the metrics that judge an answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One kind of question.

    instruction starts the prompt; shots (title, text, question, answer) follow it in the plain template. heading stands
    before each passage; ask is the wording of a question; cue is what the answer continues. metrics: of
    `measure.answer_quality`. new_tokens: the longest answer that is generated.
    """

    instruction: str
    heading: str
    ask: str
    cue: str
    metrics: tuple[str, ...]
    new_tokens: int
    shots: tuple[tuple[str, str, str, str], ...] = ()


QA = Task(
    instruction="Answer each question from the passages above it, in a few words.\n\n",
    heading="Passage:",
    ask="Question: {}\n",
    cue="Answer:",
    metrics=("f1", "f1_tokens", "em", "rank"),
    new_tokens=16,
    # Invented, so that the shots teach the format and no fact
    shots=(
        (
            "Velmora Lighthouse",
            "Velmora Lighthouse stands on the cape of Trune. It was lit in 1871 by Ada Kress.",
            "Who lit Velmora Lighthouse?",
            "Ada Kress",
        ),
        (
            "Ostrin Museum",
            "Ostrin Museum shows clocks and maps. Its founder, Piet Langer, was born in Harwick.",
            "In which town was the founder of Ostrin Museum born?",
            "Harwick",
        ),
    ),
)
# The passages are worked examples themselves: dialogues with their summaries (paper sec. 7.1)
DIALOGUE_SUMMARY = Task(
    instruction="Sum up the last dialogue in one or two sentences, as the examples do.\n\n",
    heading="Dialogue:",
    ask="Dialogue:\n{}\n",
    cue="Summary:",
    metrics=("rouge_l",),
    new_tokens=64,
)
NEWS_SUMMARY = Task(
    instruction="Read the articles, then sum them all up in one paragraph.\n\n",
    heading="Article:",
    ask="{}\n",
    cue="Summary:",
    metrics=("rouge_l",),
    new_tokens=128,
)
