#!/usr/bin/env bash
# Writes from results/ what is said about them: the numbers of README.md and DEVIATIONS.md, a report page for each model,
# and paper/paper.pdf.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
.venv/bin/python scripts/render.py
.venv/bin/python -m replication report
.venv/bin/python - << 'PYTHON'
import typst

# without the system's fonts it looks the same everywhere
typst.compile("paper/paper.typ", output="paper/paper.pdf", root=".", ignore_system_fonts=True)
print("paper/paper.pdf")
PYTHON
