#!/usr/bin/env bash
# Run all tests with several versions of JAX and Flax, each in a separate environment (`make test-matrix`).
#
#   scripts/test_matrix.sh [PYTHON:JAX:FLAX …]     a version may be a prefix (0.11) or "newest"
#
# MAKE_TARGET=quick runs the quick tests only. Missing interpreters are reported and skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
[ $# -gt 0 ] || set -- python3.11:0.10.2:0.12.8 python3.12:0.11.2:0.12.10 python3.13:newest:newest

wanted() { [ "$2" = newest ] && echo "$1" || echo "$1==$2.*"; }

failed=() ran=0
for entry in "$@"; do
  IFS=: read -r python jax flax <<<"$entry"
  if ! "$python" -c '' 2>/dev/null; then
    echo "$entry: skipped, $python is not installed"
    continue
  fi
  echo "== $entry"
  ran=1
  venv=.venv-$python-$jax-$flax
  make VENV="$venv" PYTHON="$python" "$venv/test.stamp" &&
    "$venv/bin/python" -m pip install -q --upgrade "$(wanted jax "$jax")" "$(wanted flax "$flax")" &&
    "$venv/bin/python" -c 'import flax, jax, orbax.checkpoint as o; print("JAX", jax.__version__, "Flax", flax.__version__, "Orbax", o.__version__)' &&
    make VENV="$venv" PYTHON="$python" "${MAKE_TARGET:-test}" || failed+=("$entry")
done
[ $ran -eq 1 ] || { echo "none of these interpreters is installed" >&2; exit 1; }
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
