#!/usr/bin/env bash
# Runs a small quality experiment twice, each time in a fresh process, and compares every record bit by bit; wall-clock
# fields apart. Usage: bash scripts/verify.sh [option of `python -m replication run` ...]
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for turn in first second; do
    echo "[verify] $turn run, in a process of its own"
    .venv/bin/python -m replication run quality --dataset synthetic \
        --set n=3 passages=3 sweep=chunks values=2,3 timed=1 rounds=1 --out "$work/$turn" "$@"
done
exec .venv/bin/python scripts/compare_runs.py "$work/first" "$work/second"
