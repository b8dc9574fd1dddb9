#!/usr/bin/env bash
# Train on TPUs of a GKE cluster managed by XPK (pip install xpk).
#
#   export NAME=hanabi PROJECT=my-project ZONE=us-west4-a CLUSTER=tpus IMAGE=us-docker.pkg.dev/my-project/images/marl_jax
#   scripts/gke_xpk.sh image       # build and push the image
#   scripts/gke_xpk.sh run         # submit the workload; the cluster restarts it after a preemption
#   scripts/gke_xpk.sh logs        # follow the log of process 0
#   scripts/gke_xpk.sh delete      # delete the workload; the run stays on the volume
#
# CLUSTER=new-name scripts/gke_xpk.sh cluster creates a cluster with one slice. Without XPK, use scripts/gke_jobset.yaml.
set -euo pipefail

# ------------------------------------------------------------------------------------------------------- parameters
NAME=${NAME:-marl-jax}
PROJECT=${PROJECT:?the Google Cloud project, e.g. PROJECT=my-project}
ZONE=${ZONE:?the zone, e.g. ZONE=us-west4-a}
CLUSTER=${CLUSTER:?the cluster, e.g. CLUSTER=tpus}
IMAGE=${IMAGE:?the name of the image, e.g. IMAGE=us-docker.pkg.dev/my-project/images/marl_jax}
TYPE=${TYPE:-v5litepod-16}                   # v5litepod-16 is v5e:4x4, v5p-16 is v5p:2x2x2, v6e-64 is v6e:8x8
STORAGE=${STORAGE:-share}                    # storage attached with 'xpk storage attach', mounted at /mnt/share
RESTARTS=${RESTARTS:-100}
CONFIG=${CONFIG:-experiments/hanabi_selfplay.py:qwen2.5-7b}
FLAGS=${FLAGS:---config.mesh.fsdp=4 --config.mesh.tensor=4}
# --------------------------------------------------------------------------------------------------------------------

place=(--project="$PROJECT" --zone="$ZONE" --cluster="$CLUSTER")

case "${1:-}" in
  cluster)
    xpk cluster create "${place[@]}" --tpu-type="$TYPE" --num-slices=1 --spot
    ;;
  image)
    docker build --tag "$IMAGE" --file scripts/Dockerfile.tpu .
    docker push "$IMAGE"
    ;;
  run)
    # exec passes SIGTERM to Python, which saves a checkpoint within the grace period.
    xpk workload create "${place[@]}" --workload="$NAME" --tpu-type="$TYPE" --num-slices=1 --docker-image="$IMAGE" \
      --storage="$STORAGE" --max-restarts="$RESTARTS" --termination-grace-period-seconds=300 \
      --command="exec python launch.py --config=$CONFIG --workdir=/mnt/share/runs/$NAME \
        --config.distributed.enabled=true $FLAGS"
    ;;
  logs)
    kubectl logs --follow --selector="jobset.sigs.k8s.io/jobset-name=$NAME,batch.kubernetes.io/job-completion-index=0"
    ;;
  delete)
    xpk workload delete "${place[@]}" --workload="$NAME" --force
    ;;
  *)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac
