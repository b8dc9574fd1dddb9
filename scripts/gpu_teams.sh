#!/usr/bin/env bash
# Where teams should win, on one GPU: divided information, and a solver with a trained verifier (docs/divided.md).
#
#   QWEN_15B=FILE.gguf scripts/gpu_teams.sh [half_blind] [hidden_profile] [verified]        # both tasks by default
#
# QWEN_15B is Qwen2.5-Coder-1.5B-Instruct; without it the weights are downloaded. Results are written to $OUT (default:
# runs/gpu_teams), as teams.md, teams.csv, teams.svg and verified.md with paired intervals. Three seeds (SEEDS), all forms,
# STEPS updates (default: 20) and 512 held-out examples. JOBS runs share the card (default: 4). The same command continues
# where it was stopped; LIMIT=1200 stops each name after 1,200 seconds, and the table then has the runs so far. `verified`
# needs GSM8K in MARL_JAX_DATA, and co-trains solver and verifier with ROUNDS=2.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${OUT:-runs/gpu_teams}
mkdir -p "$out"

run() { timeout --preserve-status --signal=TERM --kill-after=120 "${LIMIT:-86400}" python "$@"; }

# Completions are short, so activations fit without rematerialization.
model=(--model=qwen2.5-coder-1.5b ${QWEN_15B:+--config.model.weights="$QWEN_15B"} --config.model.remat=none)

teams() {
  run -m experiments.tables.teams --workdir="$out/teams" --only="$1" --seeds="${SEEDS:-3}" --steps="${STEPS:-20}" \
    --jobs="${JOBS:-4}" --problems=512 "${model[@]}" --config.algo.grad_accum_steps=16
}
half_blind() { teams half_blind; }
hidden_profile() { teams hidden_profile; }

verified() {
  run -m experiments.tables.verified --workdir="$out/verified" --rounds="${ROUNDS:-1}" --steps="${STEPS:-20}" "${model[@]}" \
    --config.task.max_new_tokens=300 --config.task.max_num_seqs=512
}

names="half_blind hidden_profile verified"
[ $# -gt 0 ] || set -- half_blind hidden_profile
for name in "$@"; do
  [[ " $names " == *" $name "* ]] || { echo "unknown name $name; names: $names" >&2; exit 2; }
done
failed=()
for name in "$@"; do
  echo "== $name"
  "$name" 2>&1 | tee -a "$out/$name.log" || failed+=("$name")
done
python -m experiments.tables.teams --workdir="$out/teams" --seeds="${SEEDS:-3}" --steps="${STEPS:-20}" --collect \
  --model=qwen2.5-coder-1.5b
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
