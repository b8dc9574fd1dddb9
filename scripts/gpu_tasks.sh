#!/usr/bin/env bash
# SQL, search, discovery and Verilog on one GPU: one agent and a team, before and after training at equal completions.
#
#   QWEN=FILE.gguf scripts/gpu_tasks.sh [sql] [search] [discovery] [verilog]        # the first three by default
#
# QWEN is Qwen2.5-Coder-0.5B-Instruct; without it the weights are downloaded. MODEL names another model, MODEL= is the
# embedded one, and FLAGS has further flags of every run. The data must be in MARL_JAX_DATA
# (`python -m envs.tasks.data.prepare sqleval hotpotqa squad discoverybench verilogeval`). Every form trains for 300 seconds
# (SECONDS_PER_FORM) and at most STEPS updates (default: 100). Test results with intervals before and after are written to
# $OUT (default: runs/gpu_tasks), as TASK/evaluated.md. The same command continues where it was stopped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${OUT:-runs/gpu_tasks}
mkdir -p "$out"
model=${MODEL-qwen2.5-coder-0.5b}
read -ra flags <<< "${FLAGS:-}"
failed=()

launch() { # launch TASK FORM [FLAGS...]
  local task=$1 form=$2
  shift 2
  timeout --preserve-status --signal=TERM --kill-after=120 "${SECONDS_PER_FORM:-300}" python launch.py \
    --config="experiments/$task.py:$form${model:++$model}" --workdir="$out/$task/$form" \
    ${QWEN:+--config.model.weights="$QWEN"} "${flags[@]}" "$@" || failed+=("$task/$form")
}

compare() { # compare TASK
  for form in single roles_prompt; do launch "$1" "$form" --mode=eval; done
  for form in single_grpo at_grpo_shared; do
    launch "$1" "$form" --config.steps="${STEPS:-100}" --config.eval.every=0
    launch "$1" "$form" --mode=eval
  done
  python -m experiments.tables.evaluated "$out/$1" || failed+=("$1/table")
}

names="sql search discovery verilog"
[ $# -gt 0 ] || set -- sql search discovery
for name in "$@"; do
  [[ " $names " == *" $name "* ]] || { echo "unknown name $name; names: $names" >&2; exit 2; }
done
for name in "$@"; do
  echo "== $name"
  compare "$name" > >(tee -a "$out/$name.log") 2>&1
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
