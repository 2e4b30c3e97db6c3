#!/usr/bin/env bash
# scripts/gpu_check.sh on a machine that says it has a GPU, whose kernels the CPU runs: results at
# once, what a second call does, limits, failures, an end from outside; and without a GPU.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export PYTHONDONTWRITEBYTECODE=1
install_shim starling-train starling-bench starling-topo test_operations test_cuda || { echo "skipped: the shim's plug-in is not built here" && exit 77; }
printf '#!/bin/sh\n[ ! -e "%s/fail" ] || { echo "TEST CASE:  cuda/fill: one"; echo "x.cpp:1: ERROR: CHECK( differs ) is NOT correct!"; exit 1; }\nexec "%s" --source-file-exclude="*shim_*_test.cpp" "$@"\n' \
  "$work" "$work/installed/bin/test_cuda" >installed/bin/test_cuda_device
mkdir gpu no_gpu
printf '#!/bin/sh\n[ "$1" = dmon ] || echo "Fake, 9.0, 580, 80000 MiB"\n' >gpu/nvidia-smi
printf '#!/bin/sh\nexit 9\n' >no_gpu/nvidia-smi
chmod +x installed/bin/test_cuda_device */nvidia-smi
run() { PATH=$work/$1:$PATH STARLING_BUILD=$work/installed STARLING_COMMIT=${commit:-one} "$root/scripts/gpu_check.sh" "${@:2}"; }
export -f run
export work root
some="programs start,first call,tests cuda/fill,tests cuda/open,a rank that shares"
check "some parts" 0 "^tests cuda/fill. +passed" run gpu --out out --only "$some"
verify "each has a line and a log" python3 -c '
import json, os
lines = [json.loads(line) for line in open("out/results.jsonl")]
assert [line["result"] for line in lines] == ["passed"] * 5 and all(os.path.getsize("out/" + line["log"]) for line in lines), lines'
verify "a report says which files they prove" grep -qF '| `kernels/cuda/operations/fill.cu` | passed |' out/report.md
verify "and which they do not" grep -qF '| `kernels/cuda/operations/update.cu` | not run |' out/report.md
check "a second call does nothing of it again" 0 "^done before: 5 of 5 parts" run gpu --out out --only "$some"
verify "so that its lines are those of before" test "$(wc -l <out/results.jsonl)" = 5
check "another commit does" 0 "^first call of the device +passed" env commit=two bash -c 'run gpu --out out --only "first call"'
check "a time limit" 1 "no time was left for [1-9]" run gpu --out short --seconds 20 --only "first call,tests cuda/operations,graphs agree"
check "what had no time is tried again" 1 "^done before: [1-9][0-9]* of " run gpu --out short --seconds 20 --only "first call,tests cuda/operations,graphs agree"
touch fail
check "a group of tests that fails" 1 "^tests cuda/fill. +failed .*CHECK\( differs \)" run gpu --out failed --only "tests cuda/fill,tests cuda/open"
verify "is the first of the report" bash -c 'sed -n 3,7p failed/report.md | grep -q "tests cuda/fill.*differs"'
mv installed/bin/test_operations operations && printf '#!/bin/sh\nexit 3\n' >installed/bin/test_operations && chmod +x installed/bin/test_operations
check "a device that gives no answer ends all" 1 "^STOP: " run gpu --out dead --only "first call,tests"
verify "nothing else was tried" test "$(wc -l <dead/results.jsonl)" = 1
rm fail installed/bin/test_operations && mv operations installed/bin/test_operations

# Ended from outside, it says what ran, and leaves no process.
PATH=$work/gpu:$PATH STARLING_BUILD=$work/installed STARLING_COMMIT=one STARLING_KILLED=$work "$root/scripts/gpu_check.sh" --out killed --only "graphs agree" >killed.log 2>&1 &
for ((i = 0; i < 200; ++i)); do [ ! -s killed/logs/graphs-agree.log ] || break && sleep 0.1; done
sleep 2
kill -TERM $!
wait $!
of_check() { grep -lzx "STARLING_KILLED=$work" /proc/[0-9]*/environ 2>/dev/null | wc -l; }
for ((i = 0; i < 100; ++i)); do [ "$(of_check)" != 0 ] || break && sleep 0.1; done
verify "ended by a signal it has a line" grep -q '"part": "graphs agree", "result": "no time"' killed/results.jsonl
verify "and no process stays" test "$(of_check)" = 0

check "without a GPU programs start, and nothing is proven" 4 "nothing was proven on a device" env CUDA_VISIBLE_DEVICES= bash -c 'run no_gpu --out none --only "programs start,first call,tests"'
verify "nothing else is tried" test "$(wc -l <none/results.jsonl)" = 1

# A tool that checks kernels: one that is content, one that cannot be used here, one that finds
# something.
mkdir tools
tool() { printf '#!/bin/sh\n%s\n' "$1" >tools/compute-sanitizer && chmod +x tools/compute-sanitizer; }
sanitize() { PATH=$work/tools:$PATH run gpu --out "$1" --only "memcheck cuda/update"; }
export -f sanitize
tool 'echo "========= ERROR SUMMARY: 0 errors"'
check "kernels that a tool has nothing against" 0 "^memcheck cuda/update. +passed" sanitize content
tool 'echo "========= Error: Device not supported. Please refer to the manual"; exit 1'
check "a tool that refuses the device is no failure of ours" 0 "^memcheck cuda/update. +skipped" sanitize refusing
tool 'echo "========= Invalid __global__ read of size 4 bytes"; echo "========= ERROR SUMMARY: 1 error"; exit 99'
check "what it finds is one" 1 "^memcheck cuda/update. +failed .*exit status 99: .*Invalid __global__ read" sanitize finding

# Measurements, small, and the goals that are made of them.
measure() { STARLING_BUILD=$work/installed python3 -B "$root/scripts/gpu" measure "$@"; }
export -f measure
for name in gpt2/starling32 llama/starling resnet20/starling resnet50-bf16/starling "operations/gpt2 50257 classes"; do
  check "$name" 0 '"step_ms": ' measure "$name" --small
done
check "the update" 0 '"name": "accum_adamw"' measure update/starling --small
check "an exchange on one GPU is predicted" 0 '"predicted": \{"400": ' env CUDA_VISIBLE_DEVICES= bash -c 'measure exchange/exchange --small'
mkdir two && printf '#!/bin/sh\nprintf "Fake, 9.0, 580\\nFake, 9.0, 580\\n"\n' >two/nvidia-smi && chmod +x two/nvidia-smi
check "with two it is measured" 0 '"ranks": 2, .*"exposed": ' env PATH="$work/two:$PATH" STARLING_SHARE_GPUS=1 CUDA_VISIBLE_DEVICES=0,1 bash -c 'measure exchange/exchange --small'
verify "figures against their goals" python3 -c '
import sys
sys.path[:0] = [sys.argv[1] + "/scripts/gpu", sys.argv[1] + "/scripts"]
import measure
measure.bench = lambda *words: []
known = {"gpt2/starling32": [{"tokens_per_second": 400e3, "step_ms": 80}], "gpt2/starling16": [{"tokens_per_second": 500e3}], "gpt2/compile": [{"tokens_per_second": 450e3}],
         "resnet50-bf16/starling": [{"peak_memory_bytes": 5}], "resnet50-bf16/eager": [{"peak_memory_bytes": 4}]}
rows = {(what, goal): (measured, verdict) for what, goal, measured, verdict in measure.goals(known)}
assert rows[measure.GPT2, "≥ 1 × torch.compile"] == ("1.11 × (500,000 against 450,000)", "reached"), rows
assert rows["ResNet-50, batch 256, bf16: memory", "≤ PyTorch\u0027s peak"] == ("1.25 ×", "missed") and len(rows) == 3, rows' "$root"
finish
