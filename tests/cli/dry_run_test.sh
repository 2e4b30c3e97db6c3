#!/usr/bin/env bash
# Every config of configs/ is planned by --dry-run, alone and on 4 ranks, without data files; and --list, --version.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for config in "$root"/configs/*.json; do
  name=$(basename "$config" .json)
  check "$name alone" 0 "parameters" "$train" "$config" --dry-run
  check "$name on 4 ranks" 0 "parameters" ranks 4 "$train" "$config" --dry-run
done
verify "a dry run leaves nothing behind" test -z "$(ls)"
check "a dry run reports buckets, topology and memory" 0 "bucket" ranks 4 "$train" "$root/configs/cifar10_resnet18.json" --dry-run
for word in "11,?173,?962" "one-peer-exp" "spectral gap" "[Mm]emory" '"batch_size": 128'; do
  verify "the report has '$word'" grep -qE "$word" "$work/.stdout"
done
check "resnet50's parameters" 0 "25,?557,?032" "$train" "$root/configs/imagenet_resnet50.json" --dry-run

check "a plan for GPUs needs none" 0 "^devices: " ranks 4 "$train" "$root/configs/imagenet_resnet50.json" --device cuda --dry-run
for word in "local rank 3 → GPU 3" "precision bf16" "low-precision parameters" "receive buffers" "activations" "GiB in all" "^floor on one H200" \
  "images/s a rank" "bound by" "NCCL: [0-9]+ communicators? a rank" "an estimate, not measured"; do
  verify "the plan has '$word'" grep -qE -e "$word" "$work/.stdout"
done
check "the plan counts groups' communicators, and takes sync.max_ctas" 0 "NCCL: 3 communicators a rank, the world's and 2 of groups; .*4 channels \(sync.max_ctas\)" ranks 8 "$train" \
  "$root/configs/imagenet_resnet50.json" --device cuda --set sync.topology.type=alternating-exp-ring --set sync.max_ctas=4 --dry-run
check "the floor in fp16 is of deferred batch norms" 0 "issued \(convolutions carry out batch norms\): [0-9.]+ ms" "$train" "$root/configs/imagenet_resnet50.json" --device cuda \
  --set precision=fp16 --dry-run
verify "and has a line without them" grep -qE "with batch norms by themselves: [0-9.]+ ms" "$work/.stdout"
verify "starling-bench floor prints the goals' rows" bash -c '"$0" --floor | grep -c "images/s .* bound by" | grep -qx 4' "$build/bin/starling-bench"
check "starling-bench floor of a config" 0 "conv2d_backward_data +52 " "$build/bin/starling-bench" floor "$root/configs/imagenet_resnet50.json" --batch 32
check "starling-bench floor: JSON" 0 '"images_per_second":' "$build/bin/starling-bench" floor "$root/configs/cifar10_resnet18.json" --json --bandwidth 2
verify "without deferred batch norms there is one floor" bash -c '! grep -q "\"unfused\":" "$0"' "$work/.stdout"
check "starling-bench floor: JSON in fp16" 0 '"unfused":' "$build/bin/starling-bench" floor "$root/configs/cifar10_resnet18.json" --json --precision fp16
check "starling-bench floor: a bad precision" 2 "precision" "$build/bin/starling-bench" floor "$root/configs/cifar10_resnet18.json" --precision fp8

for kind in models:resnet20 layers:conv2d topologies:one-peer-exp algorithms:gossip optimizers:accum_adamw schedules:cosine data:fashion_mnist \
  samplers:balanced augmentations:flip tasks:classification losses:cross_entropy metrics:loss; do
  check "--list ${kind%%:*}" 0 "^${kind#*:}( |\$)" "$train" --list "${kind%%:*}"
done
check "--version" 0 "[0-9]+\.[0-9]+\.[0-9]+" "$train" --version
verify "--version names the libraries" grep -qi "dnnl\|onednn" "$work/.stdout"
check "docs/config.md can be printed" 0 "batch_size" "$train" --describe-config
verify "docs/config.md is up to date (starling-train --describe-config >docs/config.md)" diff "$work/.stdout" "$root/docs/config.md"
check "--help" 0 "--dry-run" "$train" --help
finish
