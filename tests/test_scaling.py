"""TTFT by prompt length, the random model that it is measured on, and the script that does it on a GPU."""

import json
import runpy
import subprocess
from pathlib import Path

import pytest
import torch

from experiments import ttft_scaling
from replication.model import load_model
from replication.runner import run_one

ROOT = Path(__file__).parent.parent


def test_growth_is_the_speed_up_of_the_longest_over_the_shortest(tiny_directory, tmp_path):
    config = ttft_scaling.Config(
        model=tiny_directory, n=4, dtypes=("float16", "bfloat16"), lengths=(128, 256), chunk=64, rounds=2
    )
    folder = run_one("ttft_scaling", config, tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["places"]) == ["bfloat16 128", "bfloat16 256", "float16 128", "float16 256"]
    for dtype, growth in summary["growth"].items():
        short, long = (
            summary["places"][f"{dtype} {length}"]["cells"]["cacheblend-paper@15"]["speedup"]["median"]
            for length in (128, 256)
        )
        assert growth == pytest.approx(long / short, rel=1e-4)
    assert (folder / "figure.png").stat().st_size > 10_000


def test_the_random_model_loads_and_is_the_same_each_time(tmp_path):
    write = runpy.run_path(str(ROOT / "scripts" / "random_model.py"))["write"]
    for name in ("a", "b"):
        write(tmp_path / name, "tiny")
    first, second = (load_model(str(tmp_path / name), "float16") for name in ("a", "b"))
    assert first.context_length == 32_768
    assert first.weights == second.weights
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv" / "installed").is_file(), reason="no .venv: run `bash scripts/test.sh -m slow`")
def test_the_script_for_a_gpu_passes_on_the_cpu(tmp_path):
    subprocess.run(["bash", "scripts/gpu.sh", "--device", "cpu", "--out", str(tmp_path)], cwd=ROOT, check=True)
    for name in ("ttft_scaling", "loading"):
        (folder,) = tmp_path.glob(f"random-tiny/{name}/*")
        assert json.loads((folder / "provenance.json").read_text())["config"]["device"] == "cpu"
        assert (folder / "summary.json").is_file()
        assert (folder / "figure.png").stat().st_size > 10_000
