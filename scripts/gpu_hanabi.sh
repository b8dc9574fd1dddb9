#!/usr/bin/env bash
# Search, distillation, playouts, self-play and cross-play in full Hanabi on one GPU (docs/hanabi.md).
#
#   SMOLLM2=FILE scripts/gpu_hanabi.sh [search] [train] [playouts] [cross_play]
#
# `search` has been measured on one H200 (8,192 games in 124 s with SEATS=one), the others have not. Every part stops after
# LIMIT seconds (default: 570) and the same command continues where it stopped. `search` records GAMES games (default: 4096)
# in which SEATS seats search (all, the default, or one). `train` imitates them and plays with SmolLM2 for the seeds SEEDS
# (default: "0 1"), once with and once without permuted colours. `playouts` imitates the bot and improves on it, and
# `cross_play` plays all pairs of runs and the bot. SMOLLM2 is the weights file of SmolLM2-135M-Instruct; without it the
# weights are downloaded. Results are written to $OUT (default: runs/gpu_hanabi).
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
end=$((SECONDS + ${LIMIT:-570}))
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/marl_jax/jax}

run() { # stops with a checkpoint when the time is up
  local left=$((end - SECONDS))
  [ "$left" -gt 20 ] || { echo "time is up; run the same command to continue"; exit 0; }
  timeout --preserve-status --signal=TERM --kill-after=60 "$left" python "$@"
}

search() {
  run -m envs.games.hanabi.search_games --out="$out/search" --seats="${SEATS:-all}" --games="${GAMES:-4096}" \
    --batch="${BATCH:-64}" --hands=1024 --screening=32 --finalists=4 --rollouts=256 --limit=$((end - SECONDS - 15))
}

both_stages() { # both_stages NAME SEED CONFIG [FLAGS...]
  run launch.py --config="experiments/$3" --workdir="$out/runs/$1-$2" --config.seed="$2" \
    ${SMOLLM2:+--config.model.weights="$SMOLLM2"} --config.eval.opponents="('convention',)" "${@:4}"
}

train() {
  local form seed
  for seed in ${SEEDS:-0 1}; do
    for form in both other_play; do
      both_stages $form "$seed" hanabi_search.py:$form+smollm2 --config.first_stage.algo.data="$out/search" || return
    done
  done
}

playouts() {
  local seed
  for seed in ${SEEDS:-0 1}; do both_stages playouts "$seed" hanabi_playouts.py:smollm2 || return; done
}

cross_play() { run launch.py --mode=rank --workdir="$out/runs"; }

names="search train playouts cross_play"
# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || set -- $names
check_names "$names" "$@"
for name in "$@"; do
  echo "== $name"
  "$name" || exit
done
