#!/usr/bin/env bash
# The programs with --device cuda, whole, without a GPU: the plug-in that they open is the one whose
# kernels run on the CPU (tests/fakes/cuda).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
install_shim starling-train starling-bench test_operations || die "libstarling_cuda_shim.so is missing; build it first"
export shim_train=$work/installed/bin/starling-train

cat >model.json <<'END'
{
  "model": {"type": "sequential", "layers": [
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "residual", "layers": [
      {"type": "conv2d", "out_channels": 4, "kernel_size": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}]},
    {"type": "relu"}, {"type": "max_pool2d", "kernel_size": 2}, {"type": "dropout", "p": 0.1}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]},
  "data": {"type": "synthetic", "image_size": 8, "limit": 256, "test_limit": 64, "augment": {"crop_padding": 1, "flip": true}},
  "batch_size": 8,
  "steps": 6,
  "optimizer": {"type": "accum_adamw", "lr": 0.002, "accum_iter": 2},
  "sync": {"topology": {"type": "ring"}},
  "clip_norm": 5.0,
  "evaluate": {"every_epochs": 0},
  "checkpoint": {"every_steps": 3},
  "log_every": 1
}
END
run() { # FOLDER RANKS DEVICE [ARG...]
  local folder=$1 count=$2 device=$3
  shift 3
  STARLING_SHARE_GPUS=1 mpirun --oversubscribe -n "$count" "$shim_train" model.json --device "$device" --output "$folder" "$@"
}
export -f run
close_losses() { # FOLDER FOLDER SHARE
  [ "$(losses "$1" | wc -l)" = 6 ] && paste -d' ' <(losses "$1") <(losses "$2") |
    awk -v share="$3" '{ d = $2 > $4 ? $2 - $4 : $4 - $2; print; if ($1 != $3 || !(d <= share * $2)) wrong = 1 } END { exit wrong }'
}

check "training on the CPU" 0 "on .*, fp32" run cpu 1 cpu
check "training on the shim's GPU" 0 "1 rank on NVIDIA H200.*, fp32" run cuda 1 cuda
verify "the losses are the CPU's" close_losses cpu cuda 0.0005
check "2 ranks on the CPU" 0 "2 ranks" run cpu2 2 cpu
check "2 ranks share the GPU" 0 "2 ranks on NVIDIA H200" run cuda2 2 cuda
# Ranks are processes here, and the fake of NCCL connects threads: NCCL's side is
# tests/cuda/nccl_*_test.cpp's.
verify "without NCCL they say what they take" grep -q "go through host memory, because rank 0 has no NCCL: this build has no NCCL" .stderr
verify "the losses of 2 ranks are the CPU's" close_losses cpu2 cuda2 0.0005
check "asked for staged they say nothing" 0 "2 ranks on NVIDIA H200" run staged2 2 cuda --set sync.transport=staged
verify "on stderr" bash -c '! grep -q "go through host memory" "$0"' "$work/.stderr"
verify "and learn the same" same_losses cuda2 staged2
check "asked for peer memory they say what goes another way" 0 "not by reading a neighbour's parameters go through host memory" run direct2 2 cuda --set sync.transport=direct
verify "and learn the same" same_losses staged2 direct2
one_replica() { run "$1" 2 cuda --set sync.algorithm=allreduce --set sync.replica=2 --set "sync.transport=$2"; }
export -f one_replica
check "a replica through host memory" 0 "2 ranks on NVIDIA H200" one_replica replica2 staged
check "a replica in peer memory" 0 "a replica's ranks read each other's GPU memory" one_replica peers2 direct
verify "learns the same" same_losses replica2 peers2
refusing() { STARLING_SHIM_REFUSE_PEERS=$1 run "${@:2}"; }
export -f refusing
check "peer memory that is refused is an error where it was asked for" 2 "sync.transport is direct, but the ranks of a host cannot share their GPUs' memory: rank 0: cuMemImport" \
  refusing map refused2 2 cuda --set sync.transport=direct
check "and one line where it was not" 0 "ranks of one host do not read each other's GPU memory, because rank 0: the GPU of rank 1: the GPUs cannot access" refusing access auto2b 2 cuda
verify "that says it once" test "$(grep -c "GPU memory, because" "$work/.stderr")" = 1
verify "and they learn the same" same_losses staged2 auto2b
check "a rank without memory to share, by the script that asks a GPU" 0 "rank 1: " python3 -B "$root/scripts/gpu" ranks refused --train "$shim_train"
check "a lost rank of two that read each other" 0 "exit status 3 after" python3 -B "$root/scripts/gpu" ranks lost --transports direct --train "$shim_train"
check "NCCL on CPUs is refused" 2 "sync.transport: is nccl, which connects GPUs only" run cpu3 2 cpu --set sync.transport=nccl
check "a traced run that ends with an error" 4 "loss|not finite|diverged" run traced 1 cuda --trace trace.json --set optimizer.lr=1e30
check "bf16" 0 "NVIDIA H200.*, bf16" run bf16 1 cuda --set precision=bf16 --trace bf16.json
verify "whose timeline has the device's part" grep -q "compute (device)" bf16.json
verify "the losses in bf16 are close" close_losses cpu bf16 0.05
check "fp16, with a scaled loss" 0 "NVIDIA H200.*, fp16" run fp16 1 cuda --set precision=fp16
verify "the losses in fp16 are close" close_losses cpu fp16 0.05
cp -r fp16 before && rm -r fp16/checkpoints/step-6
check "a run resumed in fp16" 0 "continuing after step 3" "$shim_train" model.json --device cuda --set precision=fp16 --resume fp16
verify "gives the same losses" same_losses before fp16

check "steps timed" 0 "images/s" installed/bin/starling-bench step --device cuda --model resnet20 --image 8 --classes 10 --batch 2 --steps 1 --precision fp16
verify "no allocations in steady state" grep -q ", 0 allocations in steady state" "$work/.stdout"
check "operations timed" 0 "batch norm 1024x16, residual, relu, backward .* of the copy" installed/bin/test_operations speed --device cuda --batch 1 --repeats 1 --precision bf16
finish
