#!/usr/bin/env bash
# The measurements of starling-bench that need no GPU, and scripts around the GPU check. What its
# checks find where something is wrong, on the shim's GPUs: tests/nightly/gpu_scripts_test.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

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
check "starling-bench functions" 0 "softmax .* of a copy" "$build/bin/starling-bench" functions --only softmax --repeats 1
check "a function that is none" 2 "no function's name has 'sofa'" "$build/bin/starling-bench" functions --only sofa
check "starling-bench step" 0 "images/s" "$build/bin/starling-bench" step --model mlp --image 8 --classes 10 --batch 2 --steps 1
check "a topology that does not fit" 2 "hypercube" "$build/bin/starling-bench" scheduler --ranks 3 --topology hypercube

mkdir -p headers/include && touch headers/include/cudnn_frontend.h
check "get_cudnn_frontend.sh does nothing where the headers are" 0 "^\$" bash -c '"$0" headers && echo' "$root/scripts/get_cudnn_frontend.sh"
finish
