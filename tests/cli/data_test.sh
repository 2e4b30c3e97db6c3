#!/usr/bin/env bash
# Data files that are missing, cut short or wrong: exit status 2 and the file's name.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
cifar() { "$train" small.json --set data="{\"type\": \"cifar10\", \"path\": \"$1\"}" --set steps=1 --output "out-$RANDOM$RANDOM"; }
mnist() { "$train" small.json --set data="{\"type\": \"mnist\", \"path\": \"$1\"}" --set steps=1 --output "out-$RANDOM$RANDOM"; }
export -f cifar mnist

check "no CIFAR-10: the path and the remedy" 2 "nowhere.*get_cifar10" cifar nowhere
verify "no output folder was made for it" bash -c '! ls -d out-* 2>/dev/null'

# Whole records of zeros make a data set; any number of them.
records() { head -c $((3073 * $2)) /dev/zero >"$1"; }
mkdir -p data/cifar-10-batches-bin
for i in 1 2 3 4 5; do records "data/cifar-10-batches-bin/data_batch_$i.bin" 20; done
check "a missing file" 2 "test_batch\.bin" cifar data
records data/cifar-10-batches-bin/test_batch.bin 20
check "any number of whole records" 0 "" cifar data
head -c 10000 /dev/zero >data/cifar-10-batches-bin/data_batch_3.bin
check "a truncated file" 2 "data_batch_3\.bin.*10000" cifar data
(printf '\013' && head -c 3072 /dev/zero) >data/cifar-10-batches-bin/data_batch_3.bin
check "a label out of range" 2 "data_batch_3\.bin.*11" cifar data
: >data/cifar-10-batches-bin/data_batch_3.bin
check "an empty file" 2 "data_batch_3\.bin" cifar data

check "no MNIST" 2 "nowhere" mnist nowhere
mkdir idx
printf 'not an IDX file' >idx/train-images-idx3-ubyte
for name in train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do printf 'not an IDX file' >"idx/$name"; done
check "no IDX file" 2 "train-images-idx3-ubyte|train-labels-idx1-ubyte" mnist idx
check "on two ranks too" 2 "nowhere" ranks 2 "$train" small.json --set data='{"type": "cifar10", "path": "nowhere"}' --output two
finish
