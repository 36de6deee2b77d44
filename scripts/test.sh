#!/usr/bin/env bash
# Installs into .venv what is missing there, then runs the tests. Arguments go to pytest, e.g. -m slow
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
echo "[test] pytest $*"
exec .venv/bin/python -m pytest "$@"
