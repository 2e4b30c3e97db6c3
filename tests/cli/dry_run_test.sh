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

for kind in models:resnet20 layers:conv2d topologies:one-peer-exp algorithms:gossip optimizers:accum_adamw schedules:cosine data:fashion_mnist; do
  check "--list ${kind%%:*}" 0 "^${kind#*:}( |\$)" "$train" --list "${kind%%:*}"
done
check "--version" 0 "[0-9]+\.[0-9]+\.[0-9]+" "$train" --version
verify "--version names the libraries" grep -qi "dnnl\|onednn" "$work/.stdout"
check "docs/config.md can be printed" 0 "batch_size" "$train" --describe-config
verify "docs/config.md is up to date (starling-train --describe-config >docs/config.md)" diff "$work/.stdout" "$root/docs/config.md"
check "--help" 0 "--dry-run" "$train" --help
finish
