#!/usr/bin/env bash
# What must not change a single bit of a run: a stop and a resume, evaluations, checkpoints, the
# update mode, overlap, bucket sizes, where groups are summed in rank order. usage: bits_test.sh
# BIN_DIR RANKS ALGORITHM TOPOLOGY
set -euo pipefail
bin=$1 ranks=$2 algorithm=$3 topology=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work/.mpi  # see tests/cli/lib.sh

train() {  # NAME STEPS [ARG...]
  local name=$1 steps=$2
  shift 2
  mpirun -n "$ranks" "$bin/starling-train" "$here/resnet.json" --output "$work/$name" --set "steps=$steps" \
    --set "sync.algorithm=$algorithm" --set "sync.topology.type=$topology" "$@" >"$work/$name.log" || { cat "$work/$name.log"; exit 1; }
}
same() {  # A B STEP
  echo -n "$1 and $2 at step $3: "
  "$bin/same_tensors" "$work/$1" "$work/$2" "$3" "$ranks"
}

# NAME: the lines of training, without those of the tests at the ends of its parts and without times
losses() {
  grep -o '"step":[0-9]*,"epoch":[^,]*,"loss":[^,]*,"lr":[^,]*' "$work/$1/metrics.jsonl"
}

train whole 12
train again 12
same whole again 12
# Differing seeds must differ, or the comparison proves nothing.
train other 12 --set seed=2
if same whole other 12; then
  echo "another seed gave the same bits"
  exit 1
fi

train parts 6
train parts 12 --resume latest
same whole parts 12
diff <(losses whole) <(losses parts)

train tested 12 --set 'evaluate={"every_steps":2}' --set 'checkpoint={"every_steps":5}'
same whole tested 12
train after 12 --set sync.update=after_backward
same whole after 12
train exposed 12 --set sync.overlap=false
same whole exposed 12
train small_buckets 12 --set sync.bucket_mb=0.001
same whole small_buckets 12
train by_messages 12 --set sync.transport=mpi
same whole by_messages 12
train read_again 6 --set sync.transport=mpi
train read_again 12 --resume latest
same whole read_again 12
