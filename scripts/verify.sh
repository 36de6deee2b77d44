#!/usr/bin/env bash
# Runs every experiment on answers and fidelity that needs no engine twice, small, each time in a fresh process, and
# compares every record bit by bit, wall-clock fields apart. Usage: bash scripts/verify.sh [option of `python -m replication run` ...]
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=("$@")
timed=(timed=1 rounds=1)

run() { # EXPERIMENT SETTING...
    echo "[verify] $turn run of $1, in a process of its own"
    .venv/bin/python -m replication run "$1" --dataset synthetic --out "$work/$turn" "${options[@]}" \
        --set n=2 passages=3 "${@:2}"
}

for turn in first second; do
    run naive_concatenation attention=1
    run quality_vs_ttft ratios=0.15,1 point_ratios=0.15 "${timed[@]}"
    for experiment in kv_deviation attention_deviation picked_tokens schedule ablations equal_budget; do
        run "$experiment"
    done
    run power n=3
    run quality values=0.15,1 pipelines=map-reduce,map-rerank "${timed[@]}"
    run quality sweep=chunks values=2,3 methods=full-reuse "${timed[@]}"
    run quality sweep=length values=64,128 methods=full-reuse "${timed[@]}"
    run quality sweep=order values=0,1 methods=full-reuse "${timed[@]}"
    run quality sweep=retrieval values=1,2 pool=3 methods=full-reuse "${timed[@]}"
done
exec .venv/bin/python scripts/compare_runs.py "$work/first" "$work/second"
