#!/usr/bin/env bash
# Runs a command again until it ends well: what was saved continues, so a lost worker costs a few minutes.
#
#   scripts/keep_running.sh python launch.py --config=... --workdir=...
#
# Status 0 is the end (all steps done, or stopped by SIGTERM), 2 a command that is refused and would be again. SIGTERM and
# SIGINT are passed on, and nothing is started after them.
set -uo pipefail

ATTEMPTS=${ATTEMPTS:-100}    # in all
PAUSE=${PAUSE:-30}           # seconds before the next one: time for the others to notice too

stopped=no
pass_on() {
  stopped=yes
  [[ -n "${!:-}" ]] && kill -TERM "$!" 2>/dev/null
}
trap pass_on TERM INT

for ((attempt = 1; attempt <= ATTEMPTS; attempt++)); do
  "$@" &
  child=$!
  [[ $stopped == yes ]] && pass_on # it came while the command was being started
  wait "$child"
  status=$?
  while kill -0 "$child" 2>/dev/null; do # a signal ended the waiting, not the command
    wait "$child"
    status=$?
  done
  if [[ $status == 0 || $status == 2 || $stopped == yes ]]; then
    exit "$status"
  fi
  echo "keep_running.sh: attempt $attempt of $ATTEMPTS ended with status $status" >&2
  ((attempt == ATTEMPTS)) && break
  sleep "$PAUSE" &
  wait $!
  [[ $stopped == yes ]] && exit "$status"
done
exit "$status"
