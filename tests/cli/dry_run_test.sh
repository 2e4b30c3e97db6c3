#!/usr/bin/env bash
# What programs print that is asked for: plans, floors, versions, help. What is in a plan is
# tests/apps/refusals_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bench=$build/bin/starling-bench
resnet18=$root/configs/cifar10_resnet18.json

check "a dry run on 4 ranks" 0 "one-peer-exp" ranks 4 "$train" "$resnet18" --dry-run
verify "leaves nothing behind" test -z "$(ls)"
verify "starling-bench floor prints the goals' rows" bash -c '"$0" --floor | grep -cE "(image|token)s/s .* bound by" | grep -qx 4' "$bench"
check "starling-bench floor of a config" 0 "conv2d_backward_data +52 " "$bench" floor "$root/configs/imagenet_resnet50.json" --batch 32
check "starling-bench floor: JSON" 0 '"images_per_second":' "$bench" floor "$resnet18" --json --bandwidth 2
check "starling-bench floor: a bad precision" 2 "precision" "$bench" floor "$resnet18" --precision fp8
# A reader that has seen enough.
for reader in "head -c 1" "grep -q ."; do
  verify "a dry run | $reader" bash -c '"$0" "$1" --dry-run 2>.err | '"$reader"' >/dev/null; [ "${PIPESTATUS[0]}" = 0 ] || [ "${PIPESTATUS[0]}" = 141 ] && [ ! -s .err ]' "$train" "$resnet18"
done
verify "to a pipe that nobody reads: SIGPIPE's status, and no word" bash -c '{ sleep 0.2; "$0" --help; echo $? >&2; } 2>.err | : ; [ "$(cat .err)" = 141 ]' "$train"
# A warm-up without an end; and the data's declared size is none of a run's, which has files of
# another.
check "a warm-up longer than the run" 0 "schedule.warmup_steps: 900 are not fewer than the run's 20" \
  "$train" "$resnet18" --dry-run --set steps=20 --set schedule='{"type": "constant", "warmup_steps": 900}'

check "--version" 0 "[0-9]+\.[0-9]+\.[0-9]+" "$train" --version
verify "--version names the libraries" grep -qi "dnnl\|onednn" "$work/.stdout"
check "docs/config.md can be printed" 0 "batch_size" "$train" --describe-config
verify "docs/config.md is up to date (starling-train --describe-config >docs/config.md)" diff "$work/.stdout" "$root/docs/config.md"
check "--help" 0 "--dry-run" "$train" --help
finish
