#!/usr/bin/env bash
# VDN, QMIX, COMA, MADDPG and MAPPO on small Hanabi at equal environment steps, on one GPU (docs/vdn.md).
#
#   scripts/gpu_cooperative.sh [FLAGS OF experiments.tables.cooperative]
#
# Planned for one H200; it has not been measured there. SEEDS seeds (default: 2) of STEPS updates (default: 600) with 512
# games for 16 turns each, from scratch with the embedded model. JOBS runs share the card (default: 5). Everything is written
# to $OUT (default: runs/gpu_cooperative). After LIMIT seconds (default: 1500), or on SIGTERM, the runs save and stop and
# the table shows the results so far; the same command continues from there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exec timeout --preserve-status --signal=TERM --kill-after=120 "${LIMIT:-1500}" \
  python -m experiments.tables.cooperative --workdir="${OUT:-runs/gpu_cooperative}" --seeds="${SEEDS:-2}" \
  --steps="${STEPS:-600}" --jobs="${JOBS:-5}" --only=small_hanabi --config.rollout.num_envs=512 --config.eval.games=512 \
  --config.eval.every=100 "$@"
