#!/usr/bin/env bash
# Measurements that need no GPU, and scripts around the GPU check. What its
# checks find where something is wrong, on the shim's GPUs: tests/nightly/gpu_scripts_test.sh.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

operations=$build/bin/test_operations
check "operations timed" 0 "softmax 64x256, backward .* of the copy" "$operations" speed --batch 1 --only softmax --repeats 1
check "functions timed" 0 "softmax .* of the copy" "$operations" speed --functions --only softmax --repeats 1
check "a function that is none" 2 "no row has 'sofa'" "$operations" speed --functions --only sofa
check "operations compared" 0 "^[1-9][0-9]* rows, 0 wrong" "$operations" test --precision bf16 --only "batch norm"
check "gradients compared" 0 "^[1-9][0-9]* rows, 0 wrong" "$operations" gradient --only "layer norm"
check "what a device has" 0 "^softmax_forward +bf16 fp16 fp32 fp64" "$operations" support --only softmax
check "steps timed" 0 "images/s" "$build/bin/starling-bench" step --model mlp --image 8 --classes 10 --batch 2 --steps 1
check "a model that is none" 2 "did you mean 'resnet20'" "$build/bin/starling-bench" step --model resnet2o

mkdir -p headers/include && touch headers/include/cudnn_frontend.h
check "get_cudnn_frontend.sh does nothing where the headers are" 0 "^\$" bash -c '"$0" headers && echo' "$root/scripts/get_cudnn_frontend.sh"
finish
