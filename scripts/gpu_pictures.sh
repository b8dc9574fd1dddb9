#!/usr/bin/env bash
# Text against pictures with tiny-vl on one GPU: imitation of the solver, then PPO (docs/vision.md).
#
#   scripts/gpu_pictures.sh [plan_path] [sokoban]        # both by default
#
# Every game is trained from text and from images with the seeds SEEDS (default: "0 1"), all JOBS (default: 8) runs side by
# side on the card. IMITATION (default: 1500) and STEPS (default: 100) are the numbers of updates of the two stages, GAMES
# (default: 256) the games of an update. With STEPS=60, four runs of Plan-Path take 1.6 minutes of an H200. Every run stops
# after LIMIT seconds (default: 450) and the same command continues where it stopped. The table of all runs is printed last
# and written to $OUT/pictures.md (OUT: runs/gpu_pictures by default). MORE has further flags for every run.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
jobs=${JOBS:-8}
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-$(printf '0.%02d' $((88 / jobs)))}

train() { # GAME OBSERVATION SEED
  local name=$1-$2-$3
  # shellcheck disable=SC2086
  timeout --preserve-status --signal=TERM --kill-after=60 "${LIMIT:-450}" \
    python launch.py --config="experiments/pictures.py:$1+$2+ppo" --workdir="$out/$name" --config.seed="$3" \
    --config.first_stage.steps="${IMITATION:-1500}" --config.first_stage.rollout.num_envs="${GAMES:-256}" \
    --config.rollout.num_envs="${GAMES:-256}" --config.steps="${STEPS:-100}" --config.eval.every=100 ${MORE:-} > "$out/$name.log" 2>&1 ||
    { echo "$name failed or has not ended; see $out/$name.log" >&2; return 1; }
}

names="plan_path sokoban"
# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || set -- $names
check_names "$names" "$@"
pids=()
for name in "$@"; do
  for seed in ${SEEDS:-0 1}; do
    for observation in text image; do
      while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
      train "$name" "$observation" "$seed" &
      pids+=($!)
    done
  done
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
python -m benchmarks.pictures_table "$out" | tee "$out/pictures.md"
exit $status
