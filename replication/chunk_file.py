"""The name of a stored chunk, and its bytes as a safetensors file with a checksum.

Each layer's K and V are tensors of their own, so that `safetensors.safe_open` can read one layer at a time.
"""

import hashlib
import json
import operator
import struct
from collections.abc import Iterable
from dataclasses import asdict

import safetensors.torch
import torch

from replication.chunk import ChunkKV
from replication.context_impact import Attended

# Part of every key and file: raise it when the meaning of either changes, and old entries become misses.
FORMAT = "chunk-kv/1"

_DIGEST_MARK = b'"sha256":"'
_NO_DIGEST = b"0" * 64


def _pack(numbers: Iterable[int]) -> bytes:
    # operator.index refuses floats, which int() would silently make equal to their integer part.
    values = [operator.index(number) for number in numbers]
    return struct.pack(f"<{len(values)}q", *values)


def chunk_key(
    fingerprint: str, ids: Iterable[int], context: Iterable[int] = (), start: int = 0, *, dtype: torch.dtype | str
) -> str:
    """The content hash of a chunk: 64 hex digits, different whenever any argument differs.

    fingerprint: of the model. ids, context, start: as in ChunkKV. dtype: of the stored K and V; torch.bfloat16 and
    "bfloat16" are the same.
    """
    name = str(dtype).removeprefix("torch.")
    digest = hashlib.sha256()
    for field in (FORMAT.encode(), fingerprint.encode(), name.encode(), _pack(context), _pack([start]), _pack(ids)):
        # With its length before it, no field can run into the next: ([1], [2]) and ([1, 2], []) differ.
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)
    return digest.hexdigest()


def encode(key: str, chunk: ChunkKV) -> bytearray:
    """The chunk as a safetensors file: tensors key.0, value.0, key.1, ..., and the rest as metadata.

    A sha256 of the whole file, taken with zeros in its own place, stands in the metadata.
    """
    tensors = {}
    for layer, (keys, values) in enumerate(zip(chunk.keys, chunk.values, strict=True)):
        # Copies, because safetensors refuses views and tensors that share memory.
        tensors[f"key.{layer}"] = keys.detach().cpu().clone(memory_format=torch.contiguous_format)
        tensors[f"value.{layer}"] = values.detach().cpu().clone(memory_format=torch.contiguous_format)
    metadata = {
        "format": FORMAT,
        "key": key,
        "layers": str(len(chunk.keys)),
        "start": str(chunk.start),
        "ids": json.dumps([int(token) for token in chunk.ids]),
        "context": json.dumps([int(token) for token in chunk.context]),
        "attended": json.dumps(chunk.attended and asdict(chunk.attended)),
        "sha256": _NO_DIGEST.decode(),
    }
    data = bytearray(safetensors.torch.save(tensors, metadata))
    at = data.index(_DIGEST_MARK) + len(_DIGEST_MARK)
    data[at : at + 64] = hashlib.sha256(data).hexdigest().encode()
    return data


def decode(key: str, data: bytes) -> ChunkKV:
    """Reverses `encode`. Some exception, most often ValueError, if `data` is not what it wrote for this key."""
    at = data.index(_DIGEST_MARK) + len(_DIGEST_MARK)
    view = memoryview(data)
    digest = hashlib.sha256(view[:at])
    digest.update(_NO_DIGEST)
    digest.update(view[at + 64 :])
    if digest.hexdigest().encode() != data[at : at + 64]:
        raise ValueError("its checksum does not match its content")
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if (metadata["format"], metadata["key"]) != (FORMAT, key):
        raise ValueError("it belongs to another key or format")
    tensors = safetensors.torch.load(data)
    layers = range(int(metadata["layers"]))
    return ChunkKV(
        ids=tuple(json.loads(metadata["ids"])),
        start=int(metadata["start"]),
        keys=[tensors[f"key.{layer}"] for layer in layers],
        values=[tensors[f"value.{layer}"] for layer in layers],
        context=tuple(json.loads(metadata["context"])),
        attended=_attended(json.loads(metadata.get("attended", "null"))),
    )


def _attended(fields: dict | None) -> Attended | None:
    if fields is None:
        return None
    spans = tuple((start, stop) for start, stop in fields["spans"])
    return Attended(spans, tuple(fields["inter"]), fields["intra"], tuple(fields["tokens"]))
