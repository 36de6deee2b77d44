"""The paper's extended workload (sec. 7.1; A-12): every question also in other words, the nearest chunks of one pool
for each, in random order. Questions that mean the same bring the same chunks back, seldom in the same order."""

import random
from dataclasses import dataclass

import numpy as np

from replication.caches.embedding import Embedder
from replication.data.example import Passage, RagExample

# The paper has GPT-4 write three more questions each; these wordings keep the meaning of any question
WORDINGS = (
    "{q}",
    "Please tell me this: {q}",
    "I would like to know the following. {q}",
    "Here is what I am asking you. {q}",
)


@dataclass(frozen=True)
class Query:
    """A question in one of its wordings with the passages that retrieval found, in the order of the prompt.

    recalled: whether all passages that the answer needs are among them.
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    recalled: bool


def extended_workload(examples: list[RagExample], embedder: Embedder, top: int, seed: int) -> list[Query]:
    """Every example's question in every wording, in random order; `top` passages each, by L2 distance of embeddings
    from the passages of all examples, which are then shuffled."""
    pool = list(dict.fromkeys(p for example in examples for p in example.passages))
    rng = random.Random(f"workload-{seed}")
    asked = [(example, number) for example in examples for number in range(len(WORDINGS))]
    asked = rng.sample(asked, len(asked))
    questions = [WORDINGS[number].format(q=example.question) for example, number in asked]
    chunks, vectors = embedder.encode([f"{p.title}\n{p.text}" for p in pool]), embedder.encode(questions)
    queries = []
    for (example, number), question, vector in zip(asked, questions, vectors, strict=True):
        distances = np.linalg.norm(chunks - vector, axis=1)
        nearest = [pool[i] for i in np.argsort(distances, kind="stable")[:top]]
        recalled = all(example.passages[i] in nearest for i in example.supports)
        rng.shuffle(nearest)
        queries.append(Query(f"{example.id}/{number}", question, tuple(nearest), recalled))
    return queries
