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
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
model=${MODEL-qwen2.5-coder-0.5b} weights=${QWEN:-} limit=${SECONDS_PER_FORM:-300}

compare() { # compare TASK
  for form in single roles_prompt; do launch "$limit" "$1" "$form" --mode=eval; done
  for form in single_grpo at_grpo_shared; do
    launch "$limit" "$1" "$form" --config.steps="${STEPS:-100}" --config.eval.every=0
    launch "$limit" "$1" "$form" --mode=eval
  done
  evaluated "$1"
}
sql() { compare sql; }
search() { compare search; }
discovery() { compare discovery; }
verilog() { compare verilog; }

[ $# -gt 0 ] || set -- sql search discovery
check_names "sql search discovery verilog" "$@"
run_names "$@"
