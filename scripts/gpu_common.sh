# Shared by the scripts gpu_*.sh, which source this file. Results go to $out: $OUT, or runs/SCRIPT.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${OUT:-runs/$(basename "$0" .sh)}
mkdir -p "$out"
failed=()

check_names() { # check_names "ALL NAMES" NAME…: exit with status 2 for an unknown name
  local name
  for name in "${@:2}"; do
    [[ " $1 " == *" $name "* ]] || { echo "unknown name $name; names: $1" >&2; exit 2; }
  done
}

launch() { # launch SECONDS EXPERIMENT FORM [FLAGS...]: a run of the model $model with the file $weights and the flags $FLAGS
  local flags
  read -ra flags <<< "${FLAGS:-}"
  timeout --preserve-status --signal=TERM --kill-after=120 "$1" python launch.py \
    --config="experiments/$2.py:$3${model:++$model}" --workdir="$out/$2/$3" \
    ${weights:+--config.model.weights="$weights"} "${flags[@]}" "${@:4}" || failed+=("$2/$3")
}

seeds_of() { # seeds_of NAME CONFIG [FLAGS...]: the seeds of a row in one process in $out/NAME, until the time $end
  local more left=$((end - $(date +%s)))
  read -ra more <<< "${FLAGS:-}"
  [ "$left" -gt 30 ] || { echo "time is up before $1"; return 0; }
  echo "== $1 ($left s left)"
  XLA_PYTHON_CLIENT_MEM_FRACTION=${MEM_FRACTION:-$(awk "BEGIN {print 0.9 / $jobs}")} \
    timeout --preserve-status --signal=TERM --kill-after=60 "$left" \
    python launch.py --config="$2" --workdir="$out/$1" "${@:3}" "${more[@]}" >"$out/$1.log" 2>&1 ||
    { echo "failed: $1"; tail -5 "$out/$1.log"; }
}

side_by_side() { # side_by_side FUNCTION ROW…: call FUNCTION ROW for all rows, $jobs at a time
  export out jobs end
  export -f seeds_of "${1?}"
  printf '%s\n' "${@:2}" | xargs -P "$jobs" -I{} bash -c "$1 {}"
}

evaluated() { # evaluated NAME: the table of all runs in $out/NAME
  python -m experiments.tables.evaluated "$out/$1" || failed+=("$1/table")
}

run_names() { # run_names NAME…: call these functions, append their output to logs, and exit with status 1 after failures
  local name
  for name in "$@"; do
    echo "== $name"
    "$name" > >(tee -a "$out/$name.log") 2>&1 || failed+=("$name")
  done
  [ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
}

shared=$(compgen -A function | paste -sd '|') # the functions of this file
