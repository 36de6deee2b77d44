"""The name of a stored chunk, and its bytes as a safetensors file with checksums.

Each layer's K and V are tensors of their own, layer after layer, each with its own checksum: a reader can fetch one
layer and know that it is sound without reading the others.
"""

import hashlib
import json
import operator
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import safetensors.torch
import torch

from replication.chunk import ChunkKV
from replication.context_impact import Attended

# Part of every key and file: raise it when the meaning of either changes, and old entries become misses.
FORMAT = "chunk-kv/2"

_DIGEST_MARK = b'"sha256":"'
_NO_DIGEST = b"0" * 64
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
    """The chunk as a safetensors file: tensors 0000.key, 0000.value, 0001.key, ..., and the rest as metadata.

    The metadata holds a sha256 of every tensor's bytes, and one of the header itself, taken with zeros in its place.
    """
    tensors = {}
    for layer, (keys, values) in enumerate(zip(chunk.keys, chunk.values, strict=True)):
        for name, tensor in zip(_names(layer), (keys, values), strict=True):
            # Copies, because safetensors refuses views and tensors that share memory.
            tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    metadata = {
        "format": FORMAT,
        "key": key,
        "layers": str(len(chunk.keys)),
        "start": str(chunk.start),
        "ids": json.dumps([int(token) for token in chunk.ids]),
        "context": json.dumps([int(token) for token in chunk.context]),
        "attended": json.dumps(chunk.attended and asdict(chunk.attended)),
        "tensors": json.dumps({name: _sha256(raw_bytes(tensor)) for name, tensor in tensors.items()}),
        "sha256": _NO_DIGEST.decode(),
    }
    data = bytearray(safetensors.torch.save(tensors, metadata))
    at = data.index(_DIGEST_MARK) + len(_DIGEST_MARK)
    data[at : at + 64] = _sha256(memoryview(data)[: header_bytes(data)]).encode()
    return data


def decode(key: str, data: bytes) -> ChunkKV:
    """Reverses `encode`. Some exception, most often ValueError, if `data` is not what it wrote for this key."""
    header = Header.read(key, data[: header_bytes(data)])
    if len(data) != header.nbytes:
        raise ValueError("it is longer or shorter than its header says")
    layers = []
    for layer in range(header.layers):
        spans = header.layer(layer)
        tensors = [span.empty() for span in spans]
        for span, tensor in zip(spans, tensors, strict=True):
            raw_bytes(tensor)[:] = data[span.start : span.stop]
            span.check(tensor)
        layers.append(tensors)
    keys, values = ([pair[kind] for pair in layers] for kind in (0, 1))
    return ChunkKV(header.ids, header.start, keys, values, header.context, header.attended)


def header_bytes(data: bytes) -> int:
    """Length of the header, of which `data` holds the first 8 bytes or more."""
    return 8 + int.from_bytes(data[:8], "little")


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, to read or to fill."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


@dataclass(frozen=True)
class Span:
    """Where one tensor stands in the file: bytes start..stop-1, with this checksum."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    sha256: str

    def empty(self) -> torch.Tensor:
        """A tensor for its bytes to be read into."""
        return torch.empty(self.shape, dtype=self.dtype)

    def check(self, tensor: torch.Tensor) -> None:
        """ValueError unless `tensor` holds the bytes that were written."""
        if _sha256(raw_bytes(tensor)) != self.sha256:
            raise ValueError("a tensor's checksum does not match its content")


@dataclass(frozen=True)
class Header:
    """What a chunk file says before its tensors. ids, start, context, attended: as in ChunkKV. nbytes: of the file."""

    ids: tuple[int, ...]
    start: int
    context: tuple[int, ...]
    attended: Attended | None
    layers: int
    nbytes: int
    spans: dict[str, Span]

    @classmethod
    def read(cls, key: str, head: bytes) -> "Header":
        """Some exception, most often ValueError, if `head` is not the header that `encode` wrote for this key."""
        at = head.index(_DIGEST_MARK) + len(_DIGEST_MARK)
        if _sha256(head[:at] + _NO_DIGEST + head[at + 64 :]).encode() != head[at : at + 64]:
            raise ValueError("its checksum does not match its header")
        entries = json.loads(head[8:])
        metadata = entries.pop("__metadata__")
        if (metadata["format"], metadata["key"]) != (FORMAT, key):
            raise ValueError("it belongs to another key or format")
        digests = json.loads(metadata["tensors"])
        spans = {}
        for name, entry in entries.items():
            start, stop = (len(head) + offset for offset in entry["data_offsets"])
            spans[name] = Span(_DTYPES[entry["dtype"]], tuple(entry["shape"]), start, stop, digests[name])
        return cls(
            ids=tuple(json.loads(metadata["ids"])),
            start=int(metadata["start"]),
            context=tuple(json.loads(metadata["context"])),
            attended=_attended(json.loads(metadata["attended"])),
            layers=int(metadata["layers"]),
            nbytes=max((span.stop for span in spans.values()), default=len(head)),
            spans=spans,
        )

    def layer(self, index: int) -> tuple[Span, Span]:
        """Where K and V of a layer stand."""
        key, value = _names(index)
        return self.spans[key], self.spans[value]


def _attended(fields: dict | None) -> Attended | None:
    if fields is None:
        return None
    spans = tuple((start, stop) for start, stop in fields["spans"])
    return Attended(spans, tuple(fields["inter"]), fields["intra"], tuple(fields["tokens"]))


def _names(layer: int) -> tuple[str, str]:
    # safetensors orders tensors by name, so this is also their order in the file
    return f"{layer:04d}.key", f"{layer:04d}.value"


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
