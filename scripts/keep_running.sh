#!/usr/bin/env bash
# Restart a command until it succeeds. Runs resume from their checkpoints, so a lost worker costs a few minutes.
#
#   scripts/keep_running.sh python launch.py --config=... --workdir=...
#
# Stops at status 0 (all steps done, or stopped by SIGTERM) and 2 (invalid command). Forwards SIGTERM and SIGINT to the
# command and does not restart it afterwards.
set -uo pipefail

ATTEMPTS=${ATTEMPTS:-100}    # maximum number of attempts
PAUSE=${PAUSE:-30}           # seconds between attempts, so that other workers notice the failure

stopped=no
pass_on() {
  stopped=yes
  [[ -n "${!:-}" ]] && kill -TERM "$!" 2>/dev/null
}
trap pass_on TERM INT

for ((attempt = 1; attempt <= ATTEMPTS; attempt++)); do
  "$@" &
  child=$!
  [[ $stopped == yes ]] && pass_on # the signal came before the command was started
  wait "$child"
  status=$?
  while kill -0 "$child" 2>/dev/null; do # a signal interrupted `wait`, not the command
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
