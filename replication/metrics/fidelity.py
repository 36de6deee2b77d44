"""How close a method's next-token distributions are to full prefill's."""

import torch


def kl(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(reference || other) in nats per row, from log-probabilities [..., vocabulary]; never negative."""
    return (reference.exp() * (reference - other)).sum(-1).clamp_min(0)


def fidelity(reference: torch.Tensor, other: torch.Tensor, gold: tuple[int, ...]) -> dict[str, float]:
    """Compare log-probabilities [len(gold), vocabulary] along the teacher-forced gold answer.

    kl_first: nats at the first answer token. kl_answer: mean over the answer. top1: same most likely first token.
    agreement: share of answer tokens with the same most likely token. nll: gold answer, nats per token.
    """
    divergence = kl(reference, other)
    same = reference.argmax(-1) == other.argmax(-1)
    chosen = other.gather(1, torch.tensor(gold, device=other.device)[:, None])
    return {
        "kl_first": divergence[0].item(),
        "kl_answer": divergence.mean().item(),
        "top1": float(same[0]),
        "agreement": same.float().mean().item(),
        "nll": -chosen.mean().item(),
    }
