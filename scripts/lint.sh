#!/usr/bin/env bash
# ruff: lint and format. With --fix it mends what it can.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
[ -x .venv/bin/ruff ] || install_into_venv test
if [ "${1:-}" = --fix ]; then
  .venv/bin/ruff check --fix .
  .venv/bin/ruff format .
else
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
fi
