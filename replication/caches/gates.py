"""Checks of a near question before its answer is served: words that flip or narrow a question, or a model as judge.

An embedding hardly sees a negation, a number or a name; words do, at the price of refusing some paraphrases.

>>> same_polarity("Is the API not rate limited?", "Is the API rate limited?")
False
>>> same_polarity("How can I reset my password?", "How do I reset my password?")
True
>>> same_content("Refund policy for monthly plans", "Refund policy for annual plans")
False
"""

import re
from collections import Counter
from dataclasses import dataclass

import torch

from replication.model import Model

# fmt: off
_NEGATIONS = {
    "not", "no", "never", "without", "nor", "neither", "none", "nobody", "nothing", "except", "unless",
    "avoid", "stop", "prevent", "refuse", "instead",
}
# "one" is mostly no number in a question
_NUMBERS = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14", "fifteen": "15",
    "sixteen": "16", "seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20",
}
_FUNCTION_WORDS = {
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being", "by", "can", "could", "did",
    "do", "does", "doing", "for", "from", "get", "give", "go", "had", "has", "have", "having", "he", "help", "her",
    "here", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "know", "like", "may", "me",
    "might", "mine", "must", "my", "need", "of", "on", "one", "or", "our", "out", "please", "s", "shall", "she",
    "should", "so", "some", "tell", "that", "the", "their", "them", "then", "there", "these", "they", "this",
    "those", "to", "up", "us", "want", "was", "way", "we", "were", "what", "when", "where", "which", "who", "whom",
    "whose", "why", "will", "with", "would", "you", "your",
}
# fmt: on
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+")


def same_polarity(asked: str, stored: str) -> bool:
    """Whether both questions hold the same negations and the same numbers, counted, in any order."""
    return _marks(_words(asked)) == _marks(_words(stored))


def same_content(asked: str, stored: str) -> bool:
    """Whether they also hold the same content words: all but function words, plural s and order aside."""
    first, second = _words(asked), _words(stored)
    return _marks(first) == _marks(second) and _content(first) == _content(second)


def _words(text: str) -> list[str]:
    text = re.sub(r"(\b(ca|wo))?n['’]t\b|\bcannot\b", " not", text.lower())
    return [_NUMBERS.get(word, word.replace(",", "")) for word in _WORD.findall(text)]


def _marks(words: list[str]) -> tuple[int, Counter]:
    return sum(w in _NEGATIONS for w in words), Counter(w for w in words if w[0].isdigit())


def _content(words: list[str]) -> set[str]:
    return {w.removesuffix("s") if len(w) > 3 else w for w in words if w not in _FUNCTION_WORDS}


@dataclass(frozen=True)
class LikelihoodJudge:
    """A causal language model that is asked whether one answer fits both questions.

    cutoff: least log odds of yes over no, in nats, of a pair that it lets pass.
    """

    model: Model
    cutoff: float = 0.0

    def __call__(self, asked: str, stored: str) -> bool:
        return self.log_odds(asked, stored) >= self.cutoff

    @torch.inference_mode()
    def log_odds(self, asked: str, stored: str) -> float:
        """log p(" Yes") - log p(" No") as the next token, in nats."""
        tokenizer = self.model.tokenizer
        text = (
            f"Question 1: {stored}\nQuestion 2: {asked}\n"
            "Do the two questions mean the same, so that one answer is right for both? Yes or No?\nAnswer:"
        )
        yes, no = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (" Yes", " No"))
        ids = self.model.tensor(tokenizer(text)["input_ids"])
        logits = self.model.lm(input_ids=ids, logits_to_keep=1).logits[0, -1]
        return float(logits[yes] - logits[no])
