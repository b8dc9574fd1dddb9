#!/usr/bin/env bash
# Train on all workers of a TPU pod through queued resources.
#
#   export NAME=hanabi PROJECT=my-project ZONE=us-west4-a REPOSITORY=https://github.com/me/marl_jax.git SHARE=10.0.0.2:/share
#   scripts/tpu_pod.sh create      # request the pod and wait until it is active
#   scripts/tpu_pod.sh install     # install the code on every worker and mount the shared folder
#   scripts/tpu_pod.sh run         # start or resume the run on every worker
#   scripts/tpu_pod.sh logs        # follow the log
#   scripts/tpu_pod.sh stop        # send SIGTERM to every worker; all save at the same step and exit
#   scripts/tpu_pod.sh delete      # delete the pod; the run stays in the shared folder
#
# After a preemption, delete, create, install and run again to resume from the newest checkpoint (docs/pods.md).
set -euo pipefail

# ------------------------------------------------------------------------------------------------------- parameters
NAME=${NAME:-marl-jax}
PROJECT=${PROJECT:?the Google Cloud project, e.g. PROJECT=my-project}
ZONE=${ZONE:?the zone, e.g. ZONE=us-west4-a}
TYPE=${TYPE:-v5litepod-16}                   # v5litepod-16 is v5e:4x4, v5p-16 is v5p:2x2x2, v6e-64 is v6e:8x8
RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite}      # runtime version; v2-alpha-tpuv5 for v5p, v2-alpha-tpuv6e for v6e
SPOT=${SPOT:-yes}                            # yes: cheaper, but may be preempted at any time
REPOSITORY=${REPOSITORY:-}                   # from where the workers clone the code
SHARE=${SHARE:-}                             # NFS (Filestore) that all workers mount: HOST:/PATH; holds runs and weights
CONFIG=${CONFIG:-experiments/hanabi_selfplay.py:qwen2.5-7b}
FLAGS=${FLAGS:---config.mesh.fsdp=4 --config.mesh.tensor=4}
# --------------------------------------------------------------------------------------------------------------------

place=(--project="$PROJECT" --zone="$ZONE")
workdir="/mnt/share/runs/$NAME"

on_all() { gcloud compute tpus tpu-vm ssh "$NAME" "${place[@]}" --worker=all --command="$1"; }
state() { gcloud compute tpus queued-resources describe "$NAME" "${place[@]}" --format='value(state.state)'; }

case "${1:-}" in
  create)
    kind=()
    [[ $SPOT == yes ]] && kind=(--spot)
    gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" "${place[@]}" \
      --accelerator-type="$TYPE" --runtime-version="$RUNTIME" "${kind[@]}"
    until [[ $(state) == ACTIVE ]]; do
      echo "$NAME is $(state)"
      if [[ $(state) == FAILED || $(state) == SUSPENDED ]]; then
        echo "tpu_pod.sh: the request is $(state); run '$0 delete' and try again" >&2
        exit 1
      fi
      sleep 30
    done
    ;;
  install)
    on_all "set -e
      sudo apt-get install -y -q git make nfs-common python3-venv python3.11 python3.11-venv
      sudo mkdir -p /mnt/share
      mountpoint -q /mnt/share || sudo mount -o rw,hard '${SHARE:?the NFS that all workers mount, e.g. SHARE=10.0.0.2:/share}' /mnt/share
      sudo mkdir -p /mnt/share/runs /mnt/share/weights && sudo chmod 777 /mnt/share/runs /mnt/share/weights
      test -d marl_jax || git clone -q '${REPOSITORY:?from where the workers clone the code}' marl_jax
      cd marl_jax && git pull -q && make tpu"
    ;;
  run)
    # One process per worker, which discover each other. A second run is not started.
    on_all "cd marl_jax
      if test -f run.pid && kill -0 \$(cat run.pid) 2>/dev/null; then echo 'already running on' \$(hostname); exit 0; fi
      export MARL_JAX_WEIGHTS=/mnt/share/weights
      nohup setsid scripts/keep_running.sh .venv/bin/python launch.py --config=$CONFIG --workdir=$workdir \
        --config.distributed.enabled=true $FLAGS > run.log 2>&1 < /dev/null &
      echo \$! > run.pid"
    ;;
  logs)
    gcloud compute tpus tpu-vm ssh "$NAME" "${place[@]}" --worker=0 --command="tail -n 50 -F marl_jax/run.log"
    ;;
  stop)
    on_all "kill -TERM \$(cat marl_jax/run.pid)"
    ;;
  delete)
    gcloud compute tpus queued-resources delete "$NAME" "${place[@]}" --force --quiet
    ;;
  *)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac
