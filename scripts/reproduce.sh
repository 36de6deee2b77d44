#!/usr/bin/env bash
# Installs into .venv what is missing there, runs the experiments of a profile, and judges the claims.
# Usage: bash scripts/reproduce.sh [smoke|quick|full|caches|insights|quality] [option of `python -m replication reproduce` ...]
# Interrupted, the same command resumes where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=quick
case "${1:-}" in
    "" | -*) ;;
    *)
        profile=$1
        shift
        ;;
esac
case "$profile" in
    full | insights | quality) bash scripts/install.sh gemma ;;
    *) bash scripts/install.sh ;;
esac
echo "[reproduce] profile $profile"
exec .venv/bin/python -m replication reproduce --profile "$profile" "$@"
