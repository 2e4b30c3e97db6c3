#!/usr/bin/env bash
# What the scripts of the GPU check find where something is wrong, on the shim's GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export PYTHONDONTWRITEBYTECODE=1
install_shim starling-train || { echo "skipped: the shim's plug-in is not built here" && exit 77; }
gpu() { python3 -B "$root/scripts/gpu" "$@"; }
with_shim() { gpu ranks "$@" --train installed/bin/starling-train --transports nccl,staged --out rows.md; }
export -f gpu with_shim
export root
check "2 ranks on one GPU, every topology" 0 "^2 ranks, random-matching, staged: largest difference" with_shim agree --ranks 2
verify "none is forgotten" bash -c 'diff <(sed -nE "s/^2 ranks, ([a-z0-9-]+), staged: .*/\1/p" rows.md | sort) \
  <({ "$train" --list topologies | grep -vx custom; echo allreduce; } | sort)'
verify "nor bf16 on the wire" grep -qE '^2 ranks, base-2, bf16 on the wire, staged: largest' rows.md
verify "what was skipped is said" grep -qE '^skipped: agree, 2 ranks, over NCCL: this build has no NCCL' "$work/.stdout"
check "an unknown topology" 2 "unknown circle; known: all, " with_shim agree --topologies ring,circle
verify "that a line which names no exchange is not enough" python3 -B -c '
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from ranks import exchange_named
at = "[transport] rank 0 waited 5 s (sync.timeout_s) on host h for "
graph = "[transport] rank 0 on host h: NCCL reported an error in or after the exchanges of step 9 (replayed as a graph), buckets 0 to 2, round 9 with rank 1"
sums = at + "the sum over all ranks of the numbers of step 4"
for line in at + "the exchange of step 7, bucket 0, round 7 with rank 1", at + "rank 1 to have read step 7, bucket 0, round 6; missing", \
    sums + "; missing: rank 1 on host h last heard of 5.0 s ago", graph:
  assert exchange_named("x\n" + line + "\n[mpi] y") == line, line
for line in at + "an exchange of lengths; missing: rank 1", sums, graph.split(",")[0], "step 7, bucket 0, round 7":
  assert not exchange_named(line), line
' "$root/scripts/gpu"
# A GPU that learns something else: another learning rate stands in for it.
cat >other.sh <<'END_OF_SCRIPT'
#!/bin/bash
case "$*" in *"--device cuda"*) exec "$work/installed/bin/starling-train" "$@" --set "$instead" ;; esac
exec "$work/installed/bin/starling-train" "$@"
END_OF_SCRIPT
chmod +x other.sh
export work
instead=optimizer.lr=0.0501 check "wrong numbers are found" 1 "^error: 1 rank, ring: largest difference" gpu ranks agree --ranks 1 --topologies ring --train "$work/other.sh"
instead=trace_nothing=1 check "so is a run that fails" 1 "^error: trace, staged: exit status 2: .*trace_nothing" gpu ranks trace --transports staged --train "$work/other.sh"
instead=optimizer.lr=0.5 check "so is a training that learns something else" 1 "^error: training, mlp, fp32: loss [0-9.]+ on the CPU, .* apart, allowed 0.01 and 0.02" \
  gpu train mlp --precisions fp32 --small --train "$work/other.sh"
check "a training whose images the device crops and recolours" 0 "^training, augmented, fp32: loss .* first and last are [0-9.e-]+ and [0-9.e-]+ apart, allowed 0.01" gpu train augmented --precisions fp32 --small --train installed/bin/starling-train
instead=data.augment.rand_augment.magnitude=30 check "and one whose images become others is found" 1 "^error: training, augmented, fp32: loss .* apart, allowed 0.01 and 0.05" \
  gpu train augmented --precisions fp32 --small --train "$work/other.sh"
check "a training on pictures whose crops the device resizes" 0 "^training, pictures, fp32: loss .* apart, allowed 0.01" gpu train pictures --precisions fp32 --small --train installed/bin/starling-train
instead=data.augment.interpolation=nearest check "and one that resizes them otherwise is found" 1 "^error: training, pictures, fp32: loss .* apart, allowed 0.01" \
  gpu train pictures --precisions fp32 --small --train "$work/other.sh"

# Graphs, on a small network: the shim's kernels are slow.
small() { gpu graphs "$@" --model mlp --image 8 --batch 8; }
export -f small
check "steps that are graphs have the bits of others" 0 "^graphs, 1 rank, bf16: every tensor of every rank has the same bits after 16 steps, 1[01] of them" \
  small agree --precision bf16 --train installed/bin/starling-train
cat >other.sh <<'END_OF_SCRIPT'
#!/bin/bash
if grep -q '"cuda_graphs": true' "$1"; then exec "$work/installed/bin/starling-train" "$@" --set "$instead"; fi
exec "$work/installed/bin/starling-train" "$@"
END_OF_SCRIPT
instead=optimizer.lr=0.0011 check "graphs that learn something else are found" 1 "^error: graphs, 1 rank, fp32: rank 0: [0-9]+ of [0-9]+ tensors differ" \
  small agree --precision fp32 --train "$work/other.sh"
instead=cuda_graphs=false check "so are steps that are no graphs" 1 "^error: graphs, 1 rank, fp32: rank 0: 0 of 16 steps were graphs" \
  small agree --precision fp32 --train "$work/other.sh"
finish
