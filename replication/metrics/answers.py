"""Answer quality: F1, exact match, Rouge-L and ranking by log-likelihood (paper sec. 7.1)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from replication.errors import ReplicationError

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces: the SQuAD and HotpotQA normalisation that
    the paper's F1 rests on (sec. 7.1)."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def first_line(text: str) -> str:
    """The first line of a generation that is not blank, stripped; '' when there is none."""
    return text.strip().partition("\n")[0].rstrip()


def token_f1(prediction: str, golds: Sequence[str], split: Callable[[str], Sequence] = str.split) -> float:
    """F1 in [0, 1] of the prediction's words against the gold answer that fits best (paper sec. 7.1).

    split: what a normalised text consists of. Words by default, so that models with different tokenizers compare; the
    authors' code counts the tokens of the model's tokenizer instead. Raises ReplicationError without gold answers.
    """
    return max(_f1(split(normalise(prediction)), split(normalise(gold))) for gold in _some(golds))


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 when the normalised prediction equals a normalised gold answer, else 0.0 (reported beside sec. 7.1's F1).

    Raises ReplicationError without gold answers.
    """
    return float(any(normalise(prediction) == normalise(gold) for gold in _some(golds)))


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """Rouge-L F-measure in [0, 1] on stemmed words, against the reference that fits best (paper sec. 7.1, as the
    authors' code calls it). Raises ReplicationError without references."""
    return max(_rouge().score(reference, prediction)["rougeL"].fmeasure for reference in _some(references))


@cache
def _rouge():
    from rouge_score.rouge_scorer import RougeScorer  # slow to import

    return RougeScorer(["rougeL"], use_stemmer=True)


def rank_correct(logprob_gold: float, logprobs_distractors: Sequence[float]) -> bool:
    """Whether the gold answer is more likely than every distractor; a tie is wrong.

    Log-probabilities in nats, normalised for length by the caller if at all. It stands beside sec. 7.1's F1, which a
    small model holds near zero. Raises ReplicationError without distractors.
    """
    return all(logprob_gold > other for other in _some(logprobs_distractors))


def _f1(prediction: Sequence, gold: Sequence) -> float:
    shared = sum((Counter(prediction) & Counter(gold)).values())
    if not prediction or not gold:
        return float(len(prediction) == len(gold))  # as SQuAD 2 has it: two empty answers agree
    return 2 * shared / (len(prediction) + len(gold))


def _some(items: Sequence) -> Sequence:
    if not items:
        raise ReplicationError("nothing to compare the answer with: the list of gold answers or distractors is empty")
    return items
