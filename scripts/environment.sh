# Sourced by the other scripts: makes .venv in the checkout (once) and installs the package with the pinned versions.
#
#   install_into_venv EXTRAS    e.g. install_into_venv samples,text; afterwards $PY is the interpreter

CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1
PY=.venv/bin/python

say() { printf '\n== %s\n' "$*"; }

pip_install() {
  "$PY" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@" && return
  echo "installing failed; run this again to go on (where pip speaks of conflicting dependencies, it may be that no" \
    "package index is within reach)" >&2
  exit 1
}

install_into_venv() {
  local extras=$1 stamp=.venv/.installed-$1 base=${PYTHON:-}
  if [ -f "$stamp" ] && [ "$stamp" -nt setup.cfg ] && [ "$stamp" -nt constraints.txt ]; then
    say "environment: .venv is ready"
    return
  fi
  if [ -z "$base" ]; then
    for base in python3.11 python3.12 python3; do command -v "$base" >/dev/null 2>&1 && break; done
  fi
  if ! "$base" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
    echo "Python 3.11 or 3.12 is needed; name one with PYTHON=/path/to/python (found: $("$base" --version 2>&1))" >&2
    exit 1
  fi
  say "environment: installing into .venv (torch first, then fairseq and the package; a few minutes without a cache)"
  if ! "$PY" -m pip --version >/dev/null 2>&1; then  # none yet, interrupted, made without pip, or its Python has gone
    local clear=
    [ -e "$PY" ] || clear=--clear  # what is there has no Python to run; else all that is installed stays
    "$base" -m venv $clear .venv || { echo "python -m venv failed (on Debian and Ubuntu it needs python3-venv)" >&2; exit 1; }
  fi
  pip_install torch
  pip_install -e ".[$extras]"
  touch "$stamp"
}
