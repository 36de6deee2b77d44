"""Where a result comes from: code, versions, machine, command and time."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

_PACKAGES = (
    "chunk-kv-replication",
    "torch",
    "transformers",
    "datasets",
    "safetensors",
    "numpy",
    "scipy",
    "sentence-transformers",
    "faiss-cpu",
    "lmcache",
)
_ROOT = Path(__file__).resolve().parent.parent
# A run writes results/, and the paper reads it: only what can change a number makes a run's code "dirty".
_CODE = ("replication", "experiments", "scripts", "pyproject.toml")


def provenance() -> dict:
    """A JSON-ready account of this process; what cannot be found out is None. Holds no path of this machine."""
    return {
        "command": [_without_folders(argument) for argument in sys.orig_argv],
        "git": _git_state(),
        "machine": _machine(),
        "python": platform.python_version(),
        "started": now(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _without_folders(argument: str) -> str:
    """/a/b -> b and --out=/a/b -> --out=b; anything else as it is."""
    if os.path.isabs(argument):
        return os.path.basename(os.path.normpath(argument))
    option, equals, value = argument.partition("=")
    return option + equals + (os.path.basename(os.path.normpath(value)) if os.path.isabs(value) else value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict | None:
    """The commit, and whether the code differs from it; None when this file is not in a git checkout."""
    # Installed under some other repository, this file is not one of its files, and its commit would say nothing.
    if not _git("ls-files", "--", os.path.relpath(__file__, _ROOT)):
        return None
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", *_CODE)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _machine() -> dict:
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu("model name") or platform.processor() or platform.machine() or None,
        # how fast bf16 is hangs on these
        "bf16_units": sorted({flag for flag in (_cpu("flags") or "").split() if "bf16" in flag}),
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "torch_threads": torch.get_num_threads(),
    }


def _cpu(field: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), None)


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return None
