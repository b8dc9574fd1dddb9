#!/usr/bin/env bash
# The reasoning table on one GPU: GSM8K, MATH-500, MBPP and HumanEval with Qwen2.5-Coder-1.5B-Instruct (docs/results.md).
#
#   MARL_JAX_DATA=FOLDER QWEN_15B=FILE.gguf scripts/gpu_reasoning.sh [FLAGS OF experiments.tables.reasoning]
#
# Planned for about 25 minutes on one H200: one agent and roles, untrained and with STEPS updates (default: 15) of 512
# completions, PROBLEMS test problems per set (default: 256), maj@n and best-of-n of up to SAMPLES samples (default: 4).
# JOBS runs share the card (default: 3; each gets its part of the memory, or XLA_PYTHON_CLIENT_MEM_FRACTION). Everything is
# written to $OUT (default: runs/gpu_reasoning). After LIMIT seconds (default: 1500), or on SIGTERM, the runs save and stop
# and the table shows the results so far; the same command continues from there. ROWS selects other rows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rows=${ROWS:-single,single_grpo,roles_prompt,at_grpo_shared,at_grpo_per_role}
only="math/${rows//,/,math/},code/${rows//,/,code/}"

exec timeout --preserve-status --signal=TERM --kill-after=120 "${LIMIT:-1500}" \
  python -m experiments.tables.reasoning --model=qwen2.5-coder-1.5b --workdir="${OUT:-runs/gpu_reasoning}" --only="$only" \
  --sets=gsm8k,math500,mbpp,humaneval --steps="${STEPS:-15}" --problems="${PROBLEMS:-256}" --samples="${SAMPLES:-4}" \
  --jobs="${JOBS:-3}" --config.model.weights="$QWEN_15B" --config.optim.lr=2e-4 --config.algo.grad_accum_steps=32 \
  --config.task.max_new_tokens=400 --config.checkpoint.every=5 --config.checkpoint.keep=8 --config.eval.every=0 \
  --config.checkpoint.best_metric= "$@"
