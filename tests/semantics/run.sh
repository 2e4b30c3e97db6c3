#!/usr/bin/env bash
# Trains with starling-train under mpirun in double precision and compares every rank's parameters
# with the plain implementation. usage: run.sh BIN_DIR RANKS CONFIG [--set key=value]...
set -euo pipefail
bin=$1 ranks=$2 config=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_orte_tmpdir_base=$work/.mpi  # see tests/cli/lib.sh
"$bin/plain_training" prepare "$config" "$work/init.safetensors"
mpirun -n "$ranks" "$bin/starling-train" "$config" --output "$work/run" --set "init=$work/init.safetensors" \
  --set precision=fp64 --set tensorboard=false --set threads=1 "$@"
"$bin/plain_training" check "$work/run" "$work/init.safetensors" "$ranks"
