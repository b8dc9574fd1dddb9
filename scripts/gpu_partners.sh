#!/usr/bin/env bash
# Single-agent against multi-agent training with context agents, on one GPU (docs/partners.md).
#
#   QWEN_05B=FILE.gguf scripts/gpu_partners.sh [TASK:FORM …]
#
# QWEN_05B is Qwen2.5-Coder-0.5B-Instruct; without it the weights are downloaded. A row is a form of
# experiments/{negotiation,debugging,story}.py; TASK alone means all its forms that learn, and the default is negotiation.
# Every row trains the seeds SEEDS (default: 0,1,2) one after the other in one process, for STEPS updates (default: 30), and
# tests held-out examples against all partners before training, every EVERY updates (default: a third of STEPS) and at the
# end. JOBS rows share the card (default: 4). Debugging needs MBPP and QuixBugs in MARL_JAX_DATA. Results are written to
# $OUT (default: runs/gpu_partners), with the measures of every row in TASK_FORM.md. The same command continues where it
# was stopped; after LIMIT seconds all runs save and stop. FLAGS are added to every run. It has not been measured on a GPU.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
jobs=${JOBS:-4} end=$(($(date +%s) + ${LIMIT:-86400})) seeds=${SEEDS:-0,1,2} steps=${STEPS:-30}
every=${EVERY:-$((steps / 3))} model=${MODEL-qwen2.5-coder-0.5b}
export seeds steps every model

# shellcheck disable=SC2317,SC2329 # called by xargs
row() { # row TASK:FORM
  local task form flags=()
  IFS=: read -r task form <<<"$1"
  [ "$form" = multi_switch ] && flags=(--config.task.params.switch_at="($((steps / 3)),$((2 * steps / 3)))")
  seeds_of "${task}_$form" "experiments/$task.py:$form${model:++$model}" --seeds="$seeds" --config.steps="$steps" \
    --config.eval.every="$every" --config.eval.test=always --config.checkpoint.every=1000 \
    --config.checkpoint.best_metric= ${QWEN_05B:+--config.model.weights="$QWEN_05B"} "${flags[@]}"
  python -m experiments.tables.partners "$out/${task}_$form"/seed=* >"$out/${task}_$form.md" || echo "no table: $1"
}

rows=()
for name in "${@:-negotiation}"; do
  case $name in
    *:*) rows+=("$name") ;;
    *) for form in single multi_fixed multi_pool multi_switch multi_learning; do rows+=("$name:$form"); done ;;
  esac
done
side_by_side row "${rows[@]}"
