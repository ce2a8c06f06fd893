#!/usr/bin/env bash
# Lint, format and the whole test suite: makes .venv if needed. Arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install_into_venv test

say "lint and format"
scripts/lint.sh

say "tests"
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
exec "$PY" -m pytest -n 2 --dist worksteal "$@"
