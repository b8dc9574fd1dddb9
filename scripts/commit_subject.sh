#!/usr/bin/env bash
# Check the subject of a commit message: `area: imperative summary`, at most 72 characters. Usage: FILE
set -euo pipefail
subject=$(head -n 1 "$1")
if [[ $subject =~ ^(Merge|Revert|fixup!|squash!) ]]; then exit 0; fi
if [[ ! $subject =~ ^[a-z][a-z0-9_./-]*(,\ [a-z0-9_./-]+)*:\ [^[:space:]] ]]; then
  echo "The subject is '$subject', but must be 'area: imperative summary'." >&2
  exit 1
fi
if ((${#subject} > 72)); then
  echo "The subject has ${#subject} characters, but must have at most 72." >&2
  exit 1
fi
