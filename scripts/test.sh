#!/usr/bin/env bash
# Installs into .venv what is missing there, then runs the tests. Arguments go to pytest, e.g. -m slow or -m gemma
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
echo "[test] pytest $*"
# two workers of one thread each: on small tensors that is nearly twice as fast as one worker of two threads
export OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
