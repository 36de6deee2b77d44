#!/usr/bin/env bash
# What a GPU is for: the invariants of fused prefill on it, TTFT from 1,024 to 32,768 tokens in fp16 and bf16, and
# loading from host memory and files. About 10 minutes on a data-centre GPU, after installing. Results go to runs/gpu (or
# --out), with the device in every provenance.json.
# Usage: bash scripts/gpu.sh [--device cuda|cpu] [--shape llama-1b|mistral-7b|tiny] [--out FOLDER]
# The model has random weights, because SmolLM2's context ends at 8,192 tokens; its times are those of a trained one.
# `--device cpu` goes through all of it with a tiny model and short prompts.
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda shape= out=runs/gpu
while [ $# -gt 0 ]; do
    case "$1" in
        --device | --shape | --out)
            declare "${1#--}=${2:?$1 needs a value}"
            shift 2
            ;;
        *)
            echo "error: unknown option $1; see the head of scripts/gpu.sh" >&2
            exit 2
            ;;
    esac
done

bash scripts/install.sh
python=.venv/bin/python
"$python" - "$device" << 'EOF_PYTHON'
import sys
from replication.errors import ReplicationError
from replication.runner import check_device
try:
    check_device(sys.argv[1], "float16")
except ReplicationError as error:
    sys.exit(f"error: {error}")
EOF_PYTHON

case "$device" in
    cpu*)
        shape=${shape:-tiny}
        scaling="n=40 lengths=1024,2048 chunk=256 rounds=1"
        loading="n=40 length=1024 chunk=256 rates=0.5,1 prices=1,2 swept=0.5 traced=1 rounds=1 profile=512,1024 profile_rounds=1 entries=1000"
        ;;
    *)
        shape=${shape:-llama-1b}
        scaling="rounds=5"
        loading="n=600 length=8192 chunk=512 rates=0.5,1,2,5 prices=1,2,4,8 swept=0.5 traced=1 rounds=5 profile=1024,2048,4096,8192,16384"
        ;;
esac
model=runs/models/random-$shape

echo "[gpu] invariants of fused prefill on $device"
REPLICATION_DEVICE=$device "$python" -m pytest tests/test_device.py
if [ ! -f "$model/tokenizer.json" ]; then # it is written last
    echo "[gpu] making $model"
    "$python" scripts/random_model.py "$model" "$shape"
fi
run() { # EXPERIMENT SETTING...
    echo "[gpu] $1"
    "$python" -m replication run "$1" --model "$model" --device "$device" --out "$out" --set "${@:2}"
}
# settings are words
# shellcheck disable=SC2086
run ttft_scaling $scaling
# shellcheck disable=SC2086
run loading dtype=bfloat16 $loading
