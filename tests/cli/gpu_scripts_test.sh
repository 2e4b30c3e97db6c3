#!/usr/bin/env bash
# What the scripts of the GPU check find where something is wrong, on the shim's GPUs, and the measurements that need none. That they pass where
# all is right shows in the rehearsals of gpu_check_test.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export PYTHONDONTWRITEBYTECODE=1
mkdir no_gpu && printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi && chmod +x no_gpu/nvidia-smi

ranks_check=$root/scripts/gpu_ranks.py
shim=$(ls "$build"/lib/libstarling_cuda_shim.so 2>/dev/null)
if command -v python3 >/dev/null && [ -n "$shim" ]; then
  mkdir -p installed/bin installed/lib
  cp "$train" installed/bin
  for library in "$build"/lib/*.so*; do ln -s "$library" installed/lib; done
  ln -sf "$shim" installed/lib/libstarling_cuda.so
  with_shim() { python3 "$ranks_check" "$@" --train installed/bin/starling-train --transports nccl,staged --out rows.md; }
  export -f with_shim
  export ranks_check
  check "2 ranks on one GPU, every topology" 0 "^2 ranks, random-matching, staged: largest difference" with_shim agree --ranks 2
  verify "none is forgotten" bash -c 'diff <(sed -nE "s/^\| 2 ranks, ([a-z0-9-]+), staged \| pass .*/\1/p" rows.md | sort) \
    <({ "$train" --list topologies | grep -vx custom; echo allreduce; } | sort)'
  verify "nor bf16 on the wire" grep -qE '^\| 2 ranks, base-2, bf16 on the wire, staged \| pass' rows.md
  verify "what was skipped is said" grep -qE '^skipped: agree, 2 ranks, over NCCL: this build has no NCCL' "$work/.stdout"
  check "an unknown topology" 2 "unknown circle; known: all, " with_shim agree --topologies ring,circle
  check "every topology without being asked" 0 'config: .*"type": "torus"' with_shim agree --ranks 4 --dry-run
  verify "that a line which names no exchange is not enough" python3 -B -c '
import sys
sys.path.insert(0, sys.argv[1])
from gpu_ranks import exchange_named
at = "[transport] rank 0 waited 5 s (sync.timeout_s) on host h for "
graph = "[transport] rank 0 on host h: NCCL reported an error in or after the exchanges of step 9 (replayed as a graph), buckets 0 to 2, round 9 with rank 1"
for line in at + "the exchange of step 7, bucket 0, round 7 with rank 1", at + "rank 1 to have read step 7, bucket 0, round 6; missing", graph:
    assert exchange_named("x\n" + line + "\n[mpi] y") == line, line
for line in at + "an exchange of lengths", at + "the sum over all ranks of the numbers of step 4", graph.split(",")[0], "step 7, bucket 0, round 7":
    assert not exchange_named(line), line
' "$root/scripts"
  # A GPU that learns something else: another learning rate stands in for it.
  cat >other.sh <<'END_OF_SCRIPT'
#!/bin/bash
case "$*" in *"--device cuda"*) exec "$work/installed/bin/starling-train" "$@" --set "$instead" ;; esac
exec "$work/installed/bin/starling-train" "$@"
END_OF_SCRIPT
  chmod +x other.sh
  export work
  instead=optimizer.lr=0.0501 check "wrong numbers are found" 1 "^error: 1 rank, ring: largest difference" python3 "$ranks_check" agree --ranks 1 --topologies ring --train "$work/other.sh"
  instead=trace_nothing=1 check "so is a run that fails" 1 "^error: trace, staged: exit status 2: .*trace_nothing" python3 "$ranks_check" trace --transports staged --train "$work/other.sh"
  instead=optimizer.lr=0.5 check "so is a training that learns something else" 1 "^error: training, mlp, fp32: loss [0-9.]+ on the CPU, .* apart, allowed 0.01 and 0.02" \
    python3 "$root/scripts/gpu_train.py" mlp fp32 --small --train "$work/other.sh" --out trained.md
  verify "in its row, too" grep -qE '^\| training, mlp, fp32 \| \*\*FAIL\*\* \|' trained.md
  train_small() { python3 "$train_check" "$@"; }
  export -f train_small
  export train_check=$root/scripts/gpu_train.py
  check "a training whose images the device crops and recolours" 0 "^training, augmented, fp32: loss .* first and last are [0-9.e-]+ and [0-9.e-]+ apart, allowed 0.01" train_small augmented fp32 --small --train installed/bin/starling-train
  check "its commands alone" 0 '"precision": "bf16".*"color_jitter": .*"rand_augment": ' train_small augmented bf16 --dry-run
  instead=data.augment.rand_augment.magnitude=30 check "and one whose images become others is found" 1 "^error: training, augmented, fp32: loss .* apart, allowed 0.01 and 0.05" \
    train_small augmented fp32 --small --train "$work/other.sh"
  check "a training on pictures whose crops the device resizes" 0 "^training, pictures, fp32: loss .* apart, allowed 0.01" train_small pictures fp32 --small --train installed/bin/starling-train
  instead=data.augment.interpolation=nearest check "and one that resizes them otherwise is found" 1 "^error: training, pictures, fp32: loss .* apart, allowed 0.01" \
    train_small pictures fp32 --small --train "$work/other.sh"

  # Graphs, on a small network: the shim's kernels are slow.
  graphs_check=$root/scripts/gpu_graphs.py
  small() { python3 "$graphs_check" "$@" --model mlp --image 8 --batch 8; }
  export -f small
  export graphs_check
  check "steps that are graphs have the bits of others" 0 "^graphs, 1 rank, bf16: every tensor of every rank has the same bits after 16 steps, 1[01] of them" \
    small agree --precision bf16 --train installed/bin/starling-train --out graphs.md --keep traces
  verify "their timelines are kept" test -s traces/trace-graphs-bf16-1.json
  cat >other.sh <<'END_OF_SCRIPT'
#!/bin/bash
if grep -q '"cuda_graphs": true' "$1"; then exec "$work/installed/bin/starling-train" "$@" --set "$instead"; fi
exec "$work/installed/bin/starling-train" "$@"
END_OF_SCRIPT
  instead=optimizer.lr=0.0011 check "graphs that learn something else are found" 1 "^error: graphs, 1 rank, fp32: rank 0: [0-9]+ of [0-9]+ tensors differ" \
    small agree --precision fp32 --train "$work/other.sh"
  instead=cuda_graphs=false check "so are steps that are no graphs" 1 "^error: graphs, 1 rank, fp32: rank 0: 0 of 16 steps were graphs" \
    small agree --precision fp32 --train "$work/other.sh"
  # The scheduler changes no number of one rank.
  cp "$build/bin/starling-bench" "$build/bin/starling-topo" installed/bin
  for plain in "" --plain; do
    check "gpu-step $plain" 0 '"loss":' installed/bin/starling-bench gpu-step --model mlp --image 8 --classes 10 --batch 8 --precision bf16 --steps 5 --json $plain
    grep -oE '"loss":[-0-9.e]+' "$work/.stdout" >>losses
  done
  verify "the same loss without the scheduler" test "$(sort -u losses | wc -l)/$(wc -l <losses)" = 1/2
  # What exchanges add: predicted for one GPU; measured where nvidia-smi lists two, which share one here.
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
  # A measurement that fails leaves a row that says so, and the others theirs.
  printf '#!/bin/sh\nif [ "$1" = gpu-update ]; then echo "no such device" >&2; exit 3; fi\nexec "%s" "$@"\n' "$work/installed/bin/starling-bench" >installed/bin/broken-bench && chmod +x installed/bin/broken-bench
  check "a measurement that fails" 1 "^\| rehearsed on an MLP: fused update .* not measured \(no such device\) \|" python3 "$root/scripts/gpu_bench.py" --rehearse --only update,scheduler --bench installed/bin/broken-bench \
    --out broken --seconds 60
  verify "keeps no other from its row" grep -qE 'with the gossip scheduler, one rank .* \((.*) ms\) \| (reached|missed) \|' broken/goals.md
  check "gpu_bench.py: an unknown case" 1 "unknown vgg" python3 "$root/scripts/gpu_bench.py" --only vgg
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
# A step that fails is run again the plain ways, and where that helps with each of them alone: the report says which.
verify "a failed step names the way that fails" python3 -B -c '
import pathlib, sys, time
sys.path[:0] = [sys.argv[1] + "/gpu_check", sys.argv[1]]
import stages, tables
from runner import Runner, Step
folder, ended = pathlib.Path("diagnosis"), {}
runner = Runner(folder, lambda step, verdict, remark, seconds: ended.update({step.name: (verdict, remark)}), lambda running: None)
fails = "echo kernels start one after the other, as X do not work here: Y; [ \"${STARLING_FORK:-}\" = 0 ] || { echo error: differs; exit 1; }"
slow = Step("slow", ["bash", "-c", "sleep 30"], 3, too_slow="slower than there is time for")
for batch in stages.with_diagnosis(4, [Step("one", ["bash", "-c", fails], 20), Step("two", ["true"], 20), slow]):
    runner.run(batch, time.monotonic() + 60)
assert ended["one"][0] == "FAILED" and ended["two"][0] == "passed" and ended["slow"][0] == "skipped", ended
assert ended["one, again the plain ways"][0] == "passed", ended
alone = {name for name, (verdict, _) in ended.items() if " with " in name and verdict == "passed"}
assert alone == {"one, again with STARLING_FORK=0"} and len(ended) == 4 + len(stages.SWITCHES), ended
assert len(tables.of_folder(folder)["fall_backs"]) == 1
' "$root/scripts"

finish
