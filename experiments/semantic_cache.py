"""What a semantic cache's threshold costs (S-42 to S-44): right answers served against wrong ones, and two remedies."""

import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import identify, require_positive
from experiments.semantic_answers import ask_cache
from experiments.semantic_common import GATES, PairConfig, check_pairs, embed_all, load_readable
from experiments.semantic_figures import threshold_figure
from experiments.semantic_summary import summarise
from replication.caches.embedding import Embedder, load_embedder
from replication.caches.gates import LikelihoodJudge
from replication.caches.semantic import LookUp, SemanticCache
from replication.data.pairs import Pair
from replication.errors import ReplicationError
from replication.model import Model, load_model
from replication.question_answering import QuestionAnswering
from replication.records import RunFolder
from replication.runner import model_source

__all__ = ["TITLE", "Config", "check", "plot", "run", "summarise"]

TITLE = "Semantic cache: hit rate and wrong answers by threshold and by kind of question; remedies; wrong hits observed"
ARTICLE = {  # S-43: the article's pairs and the cosines that it prints
    "paraphrase": ("How do I reset my password?", "How can I reset my password?", 0.961),
    "negation": ("Is the API rate limited?", "Is the API not rate limited?", 0.952),
    "scope": ("Refund policy for annual plans", "Refund policy for monthly plans", 0.887),
}


@dataclass(frozen=True)
class Config(PairConfig):
    """judge: the causal model that judges pairs and writes the answers. judged: how many pairs it judges. answered:
    how many go through a cache that holds its answers. timed: rounds of timing. answer_tokens: length of an answer."""

    judge: str = "smollm2-135m"
    judged: int = 600
    answered: int = 300
    timed: int = 5
    answer_tokens: int = 64

    def __post_init__(self):
        require_positive(self, "judged", "answered", "timed", "answer_tokens")


def check(config: Config) -> None:
    check_pairs(config)
    model_source(config.judge)


def run(config: Config, folder: RunFolder) -> None:
    """Every pair scored, gated, judged and answered; pairs that a stopped run has done are not judged again."""
    embedder = load_embedder(config.model, config.device)
    loaded = load_readable(config, embedder)
    if len({pair.same for pair in loaded.pairs}) < 2:
        raise ReplicationError(f"{len(loaded.pairs)} pairs are all alike or all different: raise n")
    model = load_model(config.judge, config.dtype, config.device)
    identify(folder, {"embedder": embedder.weights, "judge": model.weights, "data": loaded.provenance})
    _score_article(embedder, folder)
    _score_pairs(config, loaded.pairs, embedder, LikelihoodJudge(model), folder)
    ask_cache(loaded.pairs[: config.answered], embedder, QuestionAnswering(model, config.answer_tokens), folder)
    _time(config, loaded.pairs, embedder, model, folder)


def _score_article(embedder: Embedder, folder: RunFolder) -> None:
    done = folder.done(("kind", "pair"))
    for name, (first, second, published) in ARTICLE.items():
        if ("article", name) not in done:
            a, b = embedder.encode([first, second])
            folder.append({"kind": "article", "pair": name, "score": float(a @ b), "published": published})


def _score_pairs(
    config: Config, pairs: list[Pair], embedder: Embedder, judge: LikelihoodJudge, folder: RunFolder
) -> None:
    """score: cosine of the pair. crowd_score, own: cosine of the nearest among all stored questions, and whether that
    is the pair's own one. judge: log odds that one answer fits both."""
    done = folder.done(("kind", "example"))
    if all(("pair", pair.id) in done for pair in pairs):
        return
    stored = embed_all(embedder, [pair.stored for pair in pairs], "stored questions")
    asked = embed_all(embedder, [pair.asked for pair in pairs], "asked questions")
    crowd = SemanticCache(embedder, threshold=-1)
    for pair, vector in zip(pairs, stored, strict=True):
        crowd.store(LookUp(pair.stored, vector), "")
    for number, pair in enumerate(tqdm(pairs, "pairs", unit="pair")):
        if ("pair", pair.id) in done:
            continue
        nearest = crowd.look_up_vector(pair.asked, asked[number])
        record = {
            "category": pair.category,
            "same": pair.same,
            "score": float(stored[number] @ asked[number]),
            "crowd_score": nearest.score,
            "own": nearest.nearest == pair.stored,
            **{name: gate(pair.asked, pair.stored) for name, gate in GATES.items()},
        }
        if number < config.judged:
            record["judge"] = judge.log_odds(pair.asked, pair.stored)
        folder.append({"kind": "pair", "example": pair.id, **record})


def _time(config: Config, pairs: list[Pair], embedder: Embedder, model: Model, folder: RunFolder) -> None:
    """Seconds of one embedding, one judgement and one generated answer, in turn, after a round of warm-up."""
    done = folder.done(("kind", "round"))
    judge, asked = LikelihoodJudge(model), QuestionAnswering(model, config.answer_tokens)
    for number in tqdm(range(-1, config.timed), "timing", unit="round"):
        if ("timing", number) in done:
            continue
        pair = pairs[number % len(pairs)]
        steps = {
            "embed": lambda pair=pair: embedder.encode([pair.asked]),
            "judge": lambda pair=pair: judge.log_odds(pair.asked, pair.stored),
            "answer": lambda pair=pair: asked.answers([pair.asked], shortest=asked.longest),
        }
        seconds = {}
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            seconds[name] = time.perf_counter() - begun
        if number >= 0:
            folder.append({"kind": "timing", "round": number, "seconds": seconds})


def plot(folder: Path) -> None:
    threshold_figure(folder)
