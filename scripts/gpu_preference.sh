#!/usr/bin/env bash
# Preference learning on one GPU: the table of learners with and without context agents, a judge, and over-optimization.
#
#   QWEN_05B=FILE.gguf QWEN_15B=FILE.gguf scripts/gpu_preference.sh [negotiation] [story] [debugging] [retrieval] \
#     [overoptimization] [judge]
#
# Planned for one H200 in about 40 minutes; it has not been measured there. QWEN_05B is Qwen2.5-Coder-0.5B-Instruct, the
# learner, and QWEN_15B Qwen2.5-Coder-1.5B-Instruct, the judge; without them the weights are downloaded. Every name is a part
# that ends after LIMIT seconds (default: 540); the same command continues where it was stopped. SEEDS (default: 3), STEPS
# updates (default: 20), ROWS (default: prompt single multi_fixed multi_switch; multi_pool and multi_learning are the others)
# and JOBS runs that share the card (default: 4). Debugging needs MBPP and QuixBugs in MARL_JAX_DATA, retrieval SQuAD. Results
# are written to $OUT (default: runs/gpu_preference); `scripts.article` puts them into the article and the slides.
source "$(dirname "${BASH_SOURCE[0]}")/gpu_common.sh"
port=${PORT:-8000}
model=(--model=qwen2.5-coder-0.5b ${QWEN_05B:+--config.model.weights="$QWEN_05B"})

run() { timeout --preserve-status --signal=TERM --kill-after=60 "${LIMIT:-540}" python "$@"; }

rows() { # rows TASK
  local row all=()
  for row in ${ROWS:-prompt single multi_fixed multi_switch}; do all+=("$1/$row"); done
  (IFS=,; echo "${all[*]}")
}

table() { # table ROWS [FLAGS...]
  local only=$1
  shift
  run -m experiments.tables.preference --workdir="$out/table" --only="$only" --seeds="${SEEDS:-3}" --steps="${STEPS:-20}" \
    --jobs="${JOBS:-4}" --problems=256 "${model[@]}" "$@"
}
negotiation() { table "$(rows negotiation)"; }
story() { table "$(rows story)"; }
debugging() { table "$(rows debugging)"; }
retrieval() { table "$(rows retrieval)"; }

overoptimization() { run -m benchmarks.overoptimization --workdir="$out/overoptimization" --seeds="${SEEDS:-3}" "${model[@]}"; }

judge() {
  python launch.py --mode=serve --workdir="$out/judge" --config.serve.port="$port" \
    --config.serve.models="('judge=${QWEN_15B:-qwen2.5-coder-1.5b-instruct}',)" >"$out/serve.log" 2>&1 &
  local server=$! status=0 everything
  for _ in $(seq 300); do
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 1
  done
  everything=$(rows negotiation),$(rows story),$(rows debugging),$(rows retrieval)
  table "$everything" --collect --judge="http://127.0.0.1:$port/v1#judge" || status=1
  kill "$server" 2>/dev/null
  wait "$server"
  return "$status"
}

names="negotiation story debugging retrieval overoptimization judge"
# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || set -- $names
check_names "$names" "$@"
run_names "$@"
