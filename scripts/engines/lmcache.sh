#!/usr/bin/env bash
# Installs LMCache (its pinned version, in-process, no GPU; 700 MB) and a Redis server into .venv, runs the tests that need
# them, and then the experiment `lmcache_differences`.
# Usage: bash scripts/engines/lmcache.sh [option of `python -m replication run lmcache_differences` ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

bash scripts/install.sh
if ! .venv/bin/python -m pip show --quiet lmcache 2> /dev/null; then
    echo "[lmcache] installing LMCache (a few minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lmcache]"
fi
echo "[lmcache] pytest"
.venv/bin/python -m pytest -rs tests/test_lmcache_store.py tests/test_lmcache_blend.py \
    tests/test_lmcache_differences.py tests/test_store.py
echo "[lmcache] lmcache_differences"
exec .venv/bin/python -m replication run lmcache_differences "$@"
