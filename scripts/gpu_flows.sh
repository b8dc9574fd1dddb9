#!/usr/bin/env bash
# Proposer and solver, and workflow search, on one GPU (docs/proposer.md, docs/workflows.md).
#
#   QWEN_15B=FILE.gguf scripts/gpu_flows.sh [proposer] [search] [design]        # the first two by default
#
# QWEN_15B is Qwen2.5-Coder-1.5B-Instruct; without it the weights are downloaded. MODEL names another model, MODEL= is the
# embedded one, and FLAGS has further flags of every run. MBPP, CRUXEval and GSM8K must be in MARL_JAX_DATA
# (`python -m envs.tasks.data.prepare mbpp cruxeval gsm8k`). Planned for about 15 minutes on one H200: every form of the
# proposer trains for SECONDS_PER_FORM (default: 120) and at most STEPS updates (default: 40), and is tested on 512 problems
# of CRUXEval; the search has ROUNDS rounds (default: 8), random edits as many tokens, and votes as many tokens per question.
# Results are written to $OUT (default: runs/gpu_flows), as proposer/evaluated.md, design/evaluated.md and
# workflow_search/gsm8k/search.md. The same command continues where it was stopped.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
model=${MODEL-qwen2.5-coder-1.5b} weights=${QWEN_15B:-}

train_and_test() { # train_and_test EXPERIMENT FORM
  launch "${SECONDS_PER_FORM:-120}" "$1" "$2" --config.steps="${STEPS:-40}" --config.eval.every=0 \
    --config.checkpoint.best_metric= --config.checkpoint.every=5
  launch 600 "$1" "$2" --mode=eval
}

proposer() {
  launch 600 proposer prompt --mode=eval
  for form in fixed frozen_proposer shared per_role; do train_and_test proposer "$form"; done
  evaluated proposer
}
search() {
  launch 600 workflow_search gsm8k --mode=search --config.search.rounds="${ROUNDS:-8}" --config.search.examples=128
}
design() {
  launch 600 design prompt --mode=eval
  for form in fixed per_role; do train_and_test design "$form"; done
  evaluated design
}

[ $# -gt 0 ] || set -- proposer search
check_names "proposer search design" "$@"
run_names "$@"
