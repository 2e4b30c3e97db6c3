#!/usr/bin/env bash
# Gossip against gradient all-reduce with everything else equal, over several seeds: prints each run's test accuracy, the means and their difference.
#   scripts/learning.sh CONFIG OUTPUT_FOLDER SEED... [-- ARG...]      ARGs go to starling-train
# Environment: STARLING_BUILD (build), STARLING_RANKS (4).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [ $# -lt 3 ]; then die "usage: scripts/learning.sh CONFIG OUTPUT_FOLDER SEED... [-- ARG...]"; fi
config=$1 output=$2
shift 2
seeds=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  seeds+=("$1")
  shift
done
if [ $# -gt 0 ]; then shift; fi
mpi_environment
for seed in "${seeds[@]}"; do
  for algorithm in gossip allreduce; do
    run=$output/$algorithm-$seed
    mpirun --oversubscribe -n "${STARLING_RANKS:-4}" "$build/bin/starling-train" "$config" --output "$run" --set seed="$seed" \
      --set sync.algorithm=$algorithm "$@" >"$output.log" 2>&1 || { tail -5 "$output.log" >&2; exit 1; }
    printf '%-10s seed %s: test accuracy %s\n' "$algorithm" "$seed" "$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' "$run/summary.json")"
  done
done | tee "$output.txt"
awk '{sum[$1] += $6; squares[$1] += $6 * $6; count[$1]++}
     END {for (a in sum) {mean[a] = sum[a] / count[a]; variance[a] = count[a] > 1 ? (squares[a] - count[a] * mean[a]^2) / (count[a] - 1) : 0}
          error = sqrt((variance["gossip"] > 0 ? variance["gossip"] : 0) / count["gossip"] + (variance["allreduce"] > 0 ? variance["allreduce"] : 0) / count["allreduce"])
          printf "gossip %.2f %%, all-reduce %.2f %%, difference %+.2f points, standard error of the difference %.2f\n",
                 100 * mean["gossip"], 100 * mean["allreduce"], 100 * (mean["gossip"] - mean["allreduce"]), 100 * error}' "$output.txt"
