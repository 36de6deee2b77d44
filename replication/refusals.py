"""Why a model is refused at load: one line a reason, asked of the model and never of its name."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from replication.errors import ReplicationError


@dataclass(frozen=True)
class Refusal:
    """reason: what the model does that reuse cannot follow. needed: what would make it possible."""

    reason: str
    needed: str


REFUSALS = {
    "layers": Refusal(
        "it has no list of {count} decoder layers, so its layers cannot be walked",
        "the list of its layers in `replication/model.py`",
    ),
    "per-token": Refusal(
        "its layers receive values of every token beside hidden states, angles, positions and mask",
        "a cut of these to the recomputed rows in `replication/fuse.py`",
    ),
    "no-angles": Refusal(
        "its layers receive no rotary position embeddings (positions are absolute, ALiBi or none), so a key computed "
        "at one position cannot be moved to another",
        "for ALiBi, whose keys hold no position, a bias cut to the recomputed rows; absolute positions are part of "
        "every hidden state, and no move of keys is exact",
    ),
    "own-cache": Refusal(
        "it does not run on a cache of K and V alone",
        "a store for what its layers keep instead (a recurrent state, for one)",
    ),
    "no-module": Refusal(
        "its position embeddings do not come from a module that could be asked for those of other positions",
        "a way to ask for them in `replication/rotary.py`",
    ),
    "no-key": Refusal(
        "layer {layer} does not put its keys into the cache",
        "a store that knows whose keys that layer reads instead",
    ),
    "no-plain-kv": Refusal(
        "layer {layer} asks its cache for something else than a place for K and V",
        "a store for what that layer keeps instead (a recurrent state, for one)",
    ),
    "moved-value": Refusal(
        "in layer {layer} what is cached as the value depends on the position (latent attention caches a latent and "
        "a rotated key instead of K and V)",
        "rotation of the second cached tensor, and a deviation that is measured on latents",
    ),
    "moved-key": Refusal(
        "in layer {layer} a moved key differs from the key computed at the new position",
        "its layout of rotary pairs, cos and sin in `replication/rotary.py`",
    ),
    "length": Refusal(
        "beyond `max_position_embeddings` its rotary frequencies change with every prompt length (dynamic NTK), so a "
        "key stored from one prompt cannot be moved into another",
        "keys stored before rotation; within `max_position_embeddings`, the same model without its rope scaling is "
        "exact",
    ),
    "own-attention": Refusal(
        "layer {layer} attends by code of its own, not through transformers' attention interface, so that attention "
        "over chosen rows cannot be put there",
        "a version of the model in transformers that uses the interface",
    ),
}


def refused(lm: PreTrainedModel, kind: str, **found) -> ReplicationError:
    """The error that refuses `lm` for the reason `kind`; found: what the reason names."""
    refusal = REFUSALS[kind]
    text = f"{type(lm).__name__} is refused: {refusal.reason}. It would need {refusal.needed}"
    return ReplicationError(text.format(**found))
