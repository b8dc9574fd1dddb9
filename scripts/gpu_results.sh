#!/usr/bin/env bash
# Reproduce results on one GPU by name: speed, language tasks, debates, games (docs/results.md, docs/performance.md).
#
#   MARL_JAX_DATA=FOLDER QWEN_05B=FILE.gguf QWEN_15B=FILE.gguf scripts/gpu_results.sh NAME …
#
# QWEN_05B, QWEN_15B and SMOLLM2 are Qwen2.5-Coder-0.5B-Instruct, -1.5B-Instruct and SmolLM2-135M-Instruct. Results are
# written to $OUT (default: runs/gpu_results) and logs to $OUT/NAME.log. Interrupted training resumes when a name is run
# again. LIMIT=600 stops each command after 600 seconds and evaluates the last checkpoint. For debates, STEPS is the number
# of updates (default: 50) and PROBLEMS the maximum number of problems per test set (default: all).
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"

run() { timeout --preserve-status --signal=TERM --kill-after=60 "${LIMIT:-86400}" python "$@"; }
train() { run launch.py --workdir="$out/$1" --config.eval.every=0 --config.checkpoint.best_metric= "${@:2}"; }
evaluate() { run launch.py --mode=eval --workdir="$out/$1" "${@:2}"; }

# --- speed

sampler() {
  run -m benchmarks.sampler --models=qwen2.5-0.5b --rows=256,1024
  run -m benchmarks.rl_step
}

start() { run -m benchmarks.start --cases=selfplay:smollm2,imitation:smollm2; }

serving() { # random weights, tokenizer from the file
  mkdir -p "$out/weights/qwen2.5-0.5b-instruct"
  ln -sf "$(realpath "$QWEN_05B")" "$out/weights/qwen2.5-0.5b-instruct/model.gguf"
  for workers in 0 4; do
    MARL_JAX_WEIGHTS="$out/weights" run -m benchmarks.serving --cases=sessions --clients=256 --turns=3 --rows=256 \
      --new=128 --max-length=1024 --model=random:qwen2.5-0.5b-instruct --dtype=bfloat16 --repeats=3 --workers=$workers
  done
}

idle() { # fraction of a step in which the GPU waits for the host
  train "idle_$1" --config=experiments/"$2".py:single_grpo+qwen2.5-coder-0.5b --config.steps=6 "${@:3}" \
    --config.task.params.turns=1 --config.task.n_episodes=2048 --config.task.max_num_seqs=1024 \
    --config.task.max_new_tokens=300 --config.task.max_length=1024 --config.model.weights="$QWEN_05B" \
    --config.model.param_dtype=bfloat16 --config.model.remat=none --config.model.lora.rank=32 \
    --config.model.lora.alpha=64 --config.optim.lr=1e-4 --config.optim.warmup=1 --config.algo.pack=4 \
    --config.algo.tis_clip=0 --config.algo.grad_accum_steps=16
}
idle_math() { idle math math_reasoning --config.task.params.tool=False; }
idle_code() { idle code code_generation; }

# --- language tasks

gsm8k_single() { # as many completions as the team of two in results.md
  train gsm8k_single --config=experiments/math_reasoning.py:single_grpo+qwen2.5-coder-1.5b --config.steps=9 \
    --config.task.params.tool=False --config.task.params.turns=1 --config.model.weights="$QWEN_15B" \
    --config.task.n_episodes=1024 --config.task.max_num_seqs=1024 --config.task.max_new_tokens=300 \
    --config.task.max_length=1024 --config.algo.pack=4 --config.algo.tis_clip=0 --config.optim.lr=2e-4 \
    --config.optim.warmup=2 && evaluate gsm8k_single --config.eval.games=1319
}

# --- debates: one row of the table each, with its evaluations

last=(--step=newest --config.eval.every=0 --config.checkpoint.best_metric=)

debate() {
  run -m experiments.tables.debate --model=qwen2.5-coder-0.5b --workdir="$out/debate" --only="$1" \
    --steps="${STEPS:-50}" --problems="${PROBLEMS:-0}" --config.model.weights="$QWEN_05B" --config.model.remat=none \
    --config.algo.grad_accum_steps=32 "${@:2}"
}
debate_untuned() { debate gsm8k/untuned --tests=debate,samples,refine,transfer; }
debate_correctness() { debate gsm8k/correctness --tests=debate,samples,transfer "${last[@]}"; }
debate_single() { debate gsm8k/single --tests=debate,samples "${last[@]}"; }
debate_anli() { debate anli/untuned,anli/correctness --tests=debate,samples,transfer "${last[@]}"; }
debate_pair() { # the other model is SmolLM2-135M, from the file $SMOLLM2 if given
  debate gsm8k/pair_untuned,gsm8k/pair --tests=debate "${last[@]}" --config.policies.ben.model.remat=none \
    ${SMOLLM2:+--config.policies.ben.model.weights="$SMOLLM2"}
}

verifier() {
  run -m experiments.tables.verifier --task=gsm8k --model=qwen2.5-coder-0.5b --workdir="$out/verifier" \
    --config.model.weights="$QWEN_05B" --config.task.max_new_tokens=300 --config.task.max_num_seqs=512
}

debate_verifier() { # after `verifier`; its balanced verifier scores the answers, and the best checkpoint is tested
  local port=${PORT:-8100} server status
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.15 python launch.py --mode=serve_reward --workdir="$out/verifier/balanced" \
    --config.serve.port="$port" &
  server=$!
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && kill -0 $server; do
    kill -0 $server 2>/dev/null || { echo "the reward server has stopped" >&2; return 1; }
    sleep 0.5
  done
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.75 debate gsm8k/untuned,gsm8k/verifier --tests=debate,samples,transfer \
    --step=best --scorer="http://127.0.0.1:$port" --config.eval.every=10 --config.checkpoint.every=10 --config.algo.kl_coef=0.002
  status=$?
  kill $server
  wait $server
  return $status
}

# --- games

hanabi() {
  run launch.py --config=experiments/hanabi_selfplay.py:smollm2 --workdir="$out/hanabi" \
    ${SMOLLM2:+--config.model.weights="$SMOLLM2"} &&
    evaluate hanabi --config.eval.games=1024 --config.eval.opponents="('convention',)"
}

# sizes and imitation steps of both puzzles
declare -A puzzles=([plan_path]="--small --games=256 --sft_steps=15" [sokoban]="--games=128 --sft_steps=20")

planning_table() { # GAME FOLDER ROWS MODEL FILE FLAGS…
  local game=$1
  # shellcheck disable=SC2086 # several words
  run -m experiments.tables.planning --steps=80 ${puzzles[$game]} --only="$game/${3//,/,$game/}" --workdir="$out/$2_$game" \
    --model="$4" ${5:+--config.model.weights="$5"} "${@:6}"
}

planning() {
  local game
  for game in plan_path sokoban; do
    planning_table $game planning single,grpo,roles,at_grpo,per_role,swapped smollm2 "${SMOLLM2:-}" --seeds=2 --jobs=4 \
      --config.eval.every=40
  done
}

planning_larger() { # best row of `planning` with a larger model; GAMES=sokoban for one game
  local game
  for game in ${GAMES:-plan_path sokoban}; do
    planning_table "$game" planning_larger single,grpo qwen2.5-coder-0.5b "$QWEN_05B" --seeds="${SEEDS:-1}" \
      --config.eval.every=20 --config.model.remat=none
  done
}

reasoned() { # NAME FLAGS…: Plan-Path from the untrained model
  train "plan_path_$1" --config=experiments/plan_path.py:grpo+qwen2.5-coder-0.5b+small --config.steps=60 \
    --config.rollout.num_envs=32 --config.model.weights="$QWEN_05B" --config.model.remat=none --config.eval.every=20 \
    --config.eval.games=512 "${@:2}"
}
planning_choice() { reasoned choice; } # moves only
planning_reasoned() {                  # free completions with reasoning before the move
  reasoned reasoned --config.env.reasoning=True --config.rollout.completion=free --config.rollout.max_new_tokens=80 \
    --config.algo.entropy_coef=0.0 --config.algo.tis_clip=2.0
}

helpers="$shared|run|train|evaluate|idle|debate|planning_table|reasoned"
names=$(declare -F | awk '{print $3}' | grep -vxE "$helpers" | paste -sd ' ')
[ $# -gt 0 ] || { echo "names: $names" >&2; exit 2; }
check_names "$names" "$@"
run_names "$@"
