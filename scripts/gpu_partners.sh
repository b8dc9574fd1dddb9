#!/usr/bin/env bash
# Single-agent against multi-agent training with context agents, on one GPU (docs/partners.md).
#
#   QWEN_05B=FILE.gguf scripts/gpu_partners.sh [negotiation] [debugging] [story]
#
# QWEN_05B is Qwen2.5-Coder-0.5B-Instruct; without it the weights are downloaded. Every form is trained with the seeds SEEDS
# (default: "0 1 2") and tested on held-out examples against all partners. Results are written to $OUT (default:
# runs/gpu_partners), with the measures of every form in FORM.md. Debugging
# needs MBPP and QuixBugs in MARL_JAX_DATA. The same command continues where it was stopped.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
model=(${QWEN_05B:+--config.model.weights="$QWEN_05B"})
forms="single multi_fixed multi_pool multi_switch multi_learning"
names="negotiation debugging story"
# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || set -- $names
check_names "$names" "$@"
for name in "$@"; do
  for form in $forms; do
    folders=()
    for seed in ${SEEDS:-0 1 2}; do
      folder="$out/$name/$form-$seed"
      folders+=("$folder")
      config=(--config="experiments/$name.py:$form+qwen2.5-coder-0.5b" --config.seed="$seed" --workdir="$folder" "${model[@]}")
      { python launch.py "${config[@]}" && python launch.py --mode=eval --workdir="$folder"; } || failed+=("$folder")
    done
    python -m experiments.tables.partners "${folders[@]}" | tee "$out/$name/$form.md"
  done
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
