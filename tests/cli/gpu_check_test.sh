#!/usr/bin/env bash
# scripts/gpu_check.sh as far as it goes without a GPU, and docs/gpu-proof.md: complete, and true to the tests it names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
script=$root/scripts/gpu_check.sh

check "a dry run prints its steps" 0 "^build +330 s at most: cmake --build" "$script" --dry-run out
for word in "^configure " "STARLING_CUDA=ON" "^tests cuda/update. +60 s" "^training, bf16" "^bench against PyTorch" "^compute-sanitizer memcheck, racecheck" \
  "^ranks: 4, every topology .*gpu_ranks.py agree --ranks 4" "^ranks: fp16 overflow" "^ranks: one is lost" "^ranks: timeline" "NCCL_HOSTID=rank" \
  "mpirun .*-n 4 .*--device cuda" '"transport": "nccl"' '"transport": "staged"' '"type": "torus"' "^the scheduler's own cost .*gpu_bench.py --only scheduler-cost" \
  "^exposed exchange, bench .*gpu_bench.py --only exchange --parts .*goals.json" "^graphs: the same, 2 that read each other .*--ranks 2 --transport direct" '"transport": "direct"' "^graphs: the bits of steps without, 2 rank.*gpu_graphs.py agree --ranks 2" \
  "^graphs: host time of a step .*gpu_graphs.py host" "^ranks: 4 that read each other .*gpu_peer.py agree --ranks 4" \
  "^ranks: one that others read is lost" "^ranks: one that shares no memory" "^graphs and scheduler, bench .*gpu_bench.py --only resnet20,scheduler" '"cuda_graphs": true' \
  '"cuda_graphs": false'; do
  verify "the steps have '$word'" grep -qE -e "$word" "$work/.stdout"
done
verify "a dry run makes nothing" test ! -e out
check "--only leaves steps out" 0 "compute-sanitizer memcheck, racecheck" "$script" --only sanitize --dry-run
verify "the others are gone" bash -c '! grep -qE "PyTorch|^training" "$0"' "$work/.stdout"
check "an unknown part" 2 "unknown part 'benches'; known: build, tests, ranks, graphs, bench, sanitize" "$script" --only benches
check "an unknown option" 2 "unknown option '--fast'" "$script" --fast
check "a second folder" 2 "two output folders" "$script" a b
check "a bad STARLING_DEPS" 2 "env.sh" env STARLING_DEPS="$work" "$script"

# The whole of it up to the first call of a device, with what is built already. There is no GPU for it, here or on a machine that has one.
mkdir no_gpu && printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi && chmod +x no_gpu/nvidia-smi
without_gpu() { # BUILD FOLDER, ARGUMENT...
  local folder=$1
  shift
  PATH=$work/no_gpu:$PATH STARLING_BUILD=$folder STARLING_CHECK_BUILT=1 "$script" "$@"
}
export work script
export -f without_gpu
check "STARLING_CHECK_BUILT is 0 or 1" 2 "it is 0 or 1" env STARLING_CHECK_BUILT=yes "$script" --dry-run
if [ -x "$build/bin/test_cuda_device" ]; then
  check "without a GPU: built, tests found, nothing proven" 4 "nothing proven on a device" without_gpu "$build" --only tests,bench found
  report=found/gpu_report.md
  for row in "| device | no GPU |" "| test discovery | passed |" "| test discovery, ctest | passed |" "| tests on a device | not run | 0 | no GPU here |" "| NCCL | " "## Steps as graphs" \
    "| exposed exchange, bench | not run | 0 | no GPU here |" "| the scheduler's own host time, gossip, on fakes, ResNet-50 in 4 buckets, base-2 over 8 ranks | ≤ 20 µs a step |"; do
    verify "the report has '$row'" grep -qF -e "$row" "$report"
  done
  rows() { grep -E '^\| `(kernels/cuda|comm)/' "$1"; }
  verify "the report has every CUDA source file" diff <(rows "$report" | cut -d'|' -f2) <(rows "$root/docs/gpu-proof.md" | cut -d'|' -f2)
  verify "no file is called proven" test "$(rows "$report" | grep -cv '| not run |')" = 0
  verify "the tests were listed" grep -qE '^cuda/update' found/build.log
  verify "by ctest, too" grep -qE 'Test +#[0-9]+: cuda_device' found/build.log
else
  echo "skipped: test_cuda_device is not built here"
fi
mkdir -p broken/bin
check "without test programs" 1 "1 step.* FAILED" without_gpu "$work/broken" --only build missing
verify "the report says which step failed" grep -qE '^\| test discovery \| FAILED: exit status' missing/gpu_report.md

# Every source file has a row, and every row a file.
proof=$root/docs/gpu-proof.md
listed() { grep -oE '^\| `kernels/cuda/[^`]+`' "$proof" | tr -d '|` ' | sort; }
sources() { (cd "$root" && ls kernels/cuda/*.cu kernels/cuda/*.cpp | sort); }
verify "docs/gpu-proof.md lists every CUDA source file once" diff <(listed) <(sources)
for name in $(awk -F'|' '/^\| `kernels\/cuda\// { gsub(/[` ]/, "", $4); gsub(/,/, "\n", $4); print $4 }' "$proof" | sort -u); do
  case $name in - | ranks:*) continue ;; esac
  pattern=${name//\*/.*}
  verify "there is a test called '$name'" bash -c 'grep -rhoE "TEST_CASE\(\"[^\"]+" "$0/tests/cuda" | sed "s/^TEST_CASE(\"//" | grep -qx "$1"' "$root" "$pattern"
done

for source in nccl_library nccl_transport nccl_watchdog peer_transport staged_transport; do
  verify "docs/gpu-proof.md has comm/$source.cpp" grep -qF "| \`comm/$source.cpp\` |" "$proof"
done

# The checks of several ranks, on the shim's GPUs: they pass where all is right, and find what is not.
ranks_check=$root/scripts/gpu_ranks.py
shim=$(ls "$build"/lib/libstarling_cuda_shim.so 2>/dev/null)
if command -v python3 >/dev/null && [ -n "$shim" ]; then
  mkdir -p installed/bin installed/lib
  cp "$train" installed/bin
  for library in "$build"/lib/*.so*; do ln -s "$library" installed/lib; done
  ln -sf "$shim" installed/lib/libstarling_cuda.so
  with_shim() { python3 "$ranks_check" "$@" --train installed/bin/starling-train --transports nccl,staged --jobs 2 --out rows.md; }
  export -f with_shim
  export ranks_check
  check "2 ranks on one GPU, every topology" 0 "^2 ranks, random-matching, staged: largest difference" with_shim agree --ranks 2
  verify "none is forgotten" bash -c 'diff <(sed -nE "s/^\| 2 ranks, ([a-z0-9-]+), staged \| pass .*/\1/p" rows.md | sort) \
    <({ "$train" --list topologies | grep -vx custom; echo allreduce; } | sort)'
  check "a rank that overflows" 0 "^overflow, staged: rank 1 takes the mix" with_shim overflow
  check "a rank that is lost" 0 "^lost, staged, SIGSTOP: exit status 3 after .*the exchange of step [0-9]+, bucket [0-9]+, round [0-9]+ with rank 1" with_shim lost
  verify "killed, too" grep -qE '^lost, staged, SIGKILL: exit status 3 after' "$work/.stdout"
  verify "a line that names no exchange is not enough" python3 -B -c '
import sys
sys.path.insert(0, sys.argv[1])
from gpu_ranks import exchange_named
at = "[transport] rank 0 waited 5 s (sync.timeout_s) on host h for "
graph = "[transport] rank 0 on host h: NCCL reported an error in or after the exchanges of step 9 (replayed as a graph), buckets 0 to 2, round 9 with rank 1"
for line in at + "the exchange of step 7, bucket 0, round 7 with rank 1", at + "rank 1 to have read step 7, bucket 0, round 6; missing", graph:
    assert exchange_named("x\n" + line + "\n[mpi] y") == line, line
for line in at + "an exchange of lengths", at + "the sum over all ranks of step 4, bucket -1", graph.split(",")[0], "step 7, bucket 0, round 7":
    assert not exchange_named(line), line
' "$root/scripts"
  check "the device's lanes" 0 "^trace, staged: [1-9]" with_shim trace
  verify "what was skipped is said" grep -qE '^skipped: trace over NCCL: this build has no NCCL' "$work/.stdout"
  # A GPU that learns something else: another learning rate stands in for it.
  cat >other.sh <<'END'
#!/bin/bash
case "$*" in *"--device cuda"*) exec "$work/installed/bin/starling-train" "$@" --set optimizer.lr=0.0501 ;; esac
exec "$work/installed/bin/starling-train" "$@"
END
  chmod +x other.sh
  check "wrong numbers are found" 1 "^error: 1 rank, ring: largest difference" python3 "$ranks_check" agree --ranks 1 --train "$work/other.sh" --jobs 2
  sed -i 's/--set optimizer.lr=0.0501/--set trace_nothing=1/' other.sh
  check "so is a run that fails" 1 "^error: trace, staged: exit status 2: .*trace_nothing" python3 "$ranks_check" trace --transports staged --train "$work/other.sh"

  # Graphs, on a small network: the shim's kernels are slow.
  graphs_check=$root/scripts/gpu_graphs.py
  small() { python3 "$graphs_check" "$@" --model mlp --image 8 --batch 8 --jobs 2; }
  export -f small
  export graphs_check
  check "steps that are graphs have the bits of others" 0 "^graphs, 1 rank, bf16: every tensor of every rank has the same bits after 16 steps, 1[01] of them" \
    small agree --train installed/bin/starling-train --out graphs.md --keep traces
  verify "in fp32 and fp16, too" test "$(grep -cE '^\| graphs, 1 rank, (fp32|fp16) \| pass \|' graphs.md)" = 2
  verify "their timelines are kept" test -s traces/trace-graphs-fp16-1.json
  check "several ranks need NCCL" 0 "^skipped: graphs, 2 ranks over NCCL: this build has no NCCL" small agree --ranks 2 --train installed/bin/starling-train
  check "several ranks that read each other" 0 "^graphs, 2 ranks, direct, fp16: every tensor of every rank has the same bits after 16 steps, 1[0-3] of them" \
    small agree --ranks 2 --transport direct --train installed/bin/starling-train --out graphs.md
  verify "in fp32 and bf16, too" test "$(grep -cE '^\| graphs, 2 ranks, direct, (fp32|bf16) \| pass \|' graphs.md)" = 2
  check "the host's time of a step" 0 "^graphs, the host, fp32: [0-9]+ µs of the host for a replayed step, [0-9]+ µs of them for the launch" \
    small host --precision fp32 --train installed/bin/starling-train --goals goals.md --keep traces
  verify "as a goal" grep -qE '^\| mlp, batch 8, fp32: host time of a replayed step \| ≤ 50 µs \| [0-9]+ µs' goals.md
  cat >other.sh <<'END'
#!/bin/bash
if grep -q '"cuda_graphs": true' "$1"; then exec "$work/installed/bin/starling-train" "$@" --set "$instead"; fi
exec "$work/installed/bin/starling-train" "$@"
END
  instead=optimizer.lr=0.0011 check "graphs that learn something else are found" 1 "^error: graphs, 1 rank, fp32: rank 0: [0-9]+ of [0-9]+ tensors differ" \
    small agree --precision fp32 --train "$work/other.sh"
  instead=cuda_graphs=false check "so are steps that are no graphs" 1 "^error: graphs, 1 rank, fp32: rank 0: 0 of 16 steps were graphs" \
    small agree --precision fp32 --train "$work/other.sh"
  # The scheduler changes no number of one rank.
  cp "$build/bin/starling-bench" installed/bin
  for plain in "" --plain; do
    check "gpu-step $plain" 0 '"loss":' installed/bin/starling-bench gpu-step --model mlp --image 8 --classes 10 --batch 8 --precision bf16 --steps 5 --json $plain
    grep -oE '"loss":[-0-9.e]+' "$work/.stdout" >>losses
  done
  verify "the same loss without the scheduler" test "$(sort -u losses | wc -l)/$(wc -l <losses)" = 1/2
  # What exchanges add: predicted for one GPU; measured where nvidia-smi lists two, which share one here.
  cp "$build/bin/starling-topo" installed/bin
  exchange() { python3 "$exchange_check" --only exchange --exchange-model mlp --bench installed/bin/starling-bench --out exchange --name "$@"; }
  without_exchange() { PATH=$work/no_gpu:$PATH exchange "$@"; }
  two_gpus() { PATH=$work/two_gpus:$PATH STARLING_SHARE_GPUS=1 CUDA_VISIBLE_DEVICES=0,1 exchange "$@"; }
  export -f exchange without_exchange two_gpus
  export exchange_check=$root/scripts/gpu_bench.py
  predicted='\| MLP, batch 8, bf16, 8 hosts of one GPU, links of 100 Gbit/s: exposed exchange \| ≤ 3 % \| predicted, one-peer-exp: a step is [0-9.]+ % longer, [0-9.]+ ms of it waiting; base-2: '
  check "an exchange on one GPU is predicted" 0 "^$predicted.*\| \*\*predicted\*\*, not measured: would be (reached|missed); assumed: " without_exchange predicted
  verify "at 400 Gbit/s, too" grep -qF "links of 400 Gbit/s: exposed exchange" exchange/predicted.md
  printf '{"raw": {"mlp bf16": {"starling": [{"step_ms": 30.8}]}, "update": {"starling": [{"results": [{"name": "adamw", "gb_per_s": 4000}]}]}}}' >parts.json
  check "from parts of the same run" 0 "^${predicted}.*measured: a step of 30.80 ms, an update at 4000 GB/s" without_exchange given --parts parts.json
  mkdir two_gpus && printf '#!/bin/sh\nprintf "0\\n1\\n"\n' >two_gpus/nvidia-smi && chmod +x two_gpus/nvidia-smi
  check "with two it is measured" 0 '^\| MLP, batch 8, bf16, one-peer-exp, 2 GPUs of this host, peer memory.*: exposed exchange \| ≤ 3 % \| [-0-9.]+ % \([0-9.]+ ms against [0-9.]+ ms of one rank\) \| (reached|missed) \|' two_gpus measured
  verify "not predicted" bash -c '! grep -qi predicted exchange/measured.md'
  check "gpu-step --plain in fp16" 2 "plain: is for fp32 and bf16" installed/bin/starling-bench gpu-step --model mlp --image 8 --precision fp16 --plain
else
  echo "skipped: no python3, or the shim's plug-in is not built here"
fi

check "starling-bench scheduler" 0 "whole step .*goal: at most 20" "$build/bin/starling-bench" scheduler --model resnet18 --image 32 --ranks 4 --topology ring --bucket-mb 1 --steps 50
verify "its parts and allocations" bash -c 'grep -qE "^allocations a step, on the heap +0 +0" "$0" && grep -qE "^  update issue +[0-9.]+ +[0-9.]+" "$0"' "$work/.stdout"
check "as JSON" 0 '"buckets":' "$build/bin/starling-bench" scheduler --model mlp --image 8 --classes 10 --steps 20 --json
verify "with sane figures" python3 -c '
import json, sys
figures = json.load(open(sys.argv[1]))
for name in ("gossip", "allreduce"):
    row = figures[name]
    assert 0 < row["step_us"] < 1e5 and row["heap_allocations"] == 0 and row["backend_allocations"] == 0, row
    assert all(0 <= part < 1e5 for part in row["parts_us"].values()) and row["parts_us"]["update"] > 0, row
' "$work/.stdout"
check "a topology that does not fit" 2 "hypercube" "$build/bin/starling-bench" scheduler --ranks 3 --topology hypercube

mkdir -p headers/include && touch headers/include/cudnn_frontend.h
check "get_cudnn_frontend.sh does nothing where the headers are" 0 "^\$" bash -c '"$0" headers && echo' "$root/scripts/get_cudnn_frontend.sh"
check "pack_deps.sh needs a folder" 2 "usage" "$root/scripts/pack_deps.sh"
check "pack_deps.sh wants an empty one" 2 "not empty" "$root/scripts/pack_deps.sh" headers
if command -v python3 >/dev/null; then
  check "gpu_bench.py: an unknown case" 1 "unknown vgg" python3 "$root/scripts/gpu_bench.py" --only vgg
fi
finish
