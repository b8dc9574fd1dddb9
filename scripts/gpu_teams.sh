#!/usr/bin/env bash
# Where teams should win, on one GPU: planning with a tool, divided information (docs/results.md, docs/divided.md).
#
#   QWEN_15B=FILE.gguf scripts/gpu_teams.sh [TASK:ROW …]
#
# QWEN_15B is Qwen2.5-Coder-1.5B-Instruct; without it the weights are downloaded. A row is a form of
# experiments/{hidden_profile,half_blind,planning_team}.py. TASK:ROW:GAME sets the game of the planning team,
# TASK:ROW:GAME:STEPS also the number of updates, and TASK:ROW:GAME:STEPS:SEEDS the seeds; the default rows are listed
# below. Every row trains the seeds SEEDS (default: 0,1,2) one after the other in one process, with shared compiled programs,
# and tests 512 held-out examples before training, every EVERY updates and at the end. JOBS rows share the card (default: 3).
# Results are written to $OUT (default: runs/gpu_teams), the tables to $OUT/tables. The same command continues where it was
# stopped; after LIMIT seconds all runs save and stop. FLAGS are added to every run.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
model=qwen2.5-coder-1.5b jobs=${JOBS:-3} end=$(($(date +%s) + ${LIMIT:-86400})) seeds=${SEEDS:-0,1,2}
export model seeds

# shellcheck disable=SC2317,SC2329 # called by xargs
row() { # row TASK:FORM[:GAME[:STEPS[:SEEDS]]]
  local task form game steps own_seeds flags parts=16
  IFS=: read -r task form game steps own_seeds <<<"$1"
  case $task in
    half_blind | hidden_profile)
      flags=(--config.steps="${steps:-20}" --config.eval.every="${EVERY:-10}" --config.stop_when="success>=0.98")
      ;;
    planning_team)
      parts=32
      flags=(--config.steps="${steps:-60}" --config.eval.every="${EVERY:-5}" --config.task.params.game="${game:-plan_path}")
      case $form in
        at_grpo*) flags+=(--config.stop_when="task/plan_rate>=0.98") ;;
        tool_grpo) flags+=(--config.stop_when="success>=0.97" --config.algo.pack=2) ;;
      esac
      ;;
    *) echo "unknown task $task; tasks: half_blind, hidden_profile, planning_team" >&2; return 2 ;;
  esac
  seeds_of "${1//[:,]/_}" "experiments/$task.py:$form+$model" --seeds="${own_seeds:-$seeds}" "${flags[@]}" \
    --config.eval.test=always --config.checkpoint.every=1000 --config.checkpoint.best_metric= \
    --config.algo.grad_accum_steps="${ACCUM:-$parts}" --config.model.remat="${REMAT:-full}" \
    ${QWEN_15B:+--config.model.weights="$QWEN_15B"}
}

[ $# -gt 0 ] || set -- half_blind:at_grpo_shared hidden_profile:at_grpo_shared planning_team:at_grpo_per_role \
  planning_team:tool_grpo:plan_path:4 hidden_profile:all_grpo half_blind:all_grpo hidden_profile:seat_grpo half_blind:seat_grpo
side_by_side row "$@"

count=$(tr ',' '\n' <<<"$seeds" | wc -l)
collect() { python -m "experiments.tables.$1" --workdir="$out/tables/$1" --model=$model --runs="$out" --seeds="$count" --collect "${@:2}"; }
compgen -G "$out/h*" >/dev/null && collect teams
compgen -G "$out/planning_team*" >/dev/null && collect planning --only=team_plan_path,team_sokoban,team_sudoku
exit 0
