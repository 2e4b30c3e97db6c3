#!/usr/bin/env bash
# Standard files that are closed, full, or read by nobody.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export STARLING_BUILD=${STARLING_BUILD:-$build}
small_config
closed() { # REDIRECTION COMMAND: says so where it ends with 0, as what it says itself is lost
  eval "$2 $1" && echo ended well
}
export -f closed

# A closed one must not become the number of a file that is opened later.
check "training with stdout closed" 0 "ended well" closed '>&-' '"$train" small.json --output out'
verify "no progress among the metrics" bash -c 'grep -vE "^\{.*\}$" out/metrics.jsonl; ! grep -qvE "^\{.*\}$" out/metrics.jsonl'
check "training with all three closed" 0 "ended well" closed '<&- >&- 2>&-' '"$train" small.json --set tensorboard=true --output all'
verify "the same losses" same_losses out all
check "a warning with stderr closed" 0 "ended well" closed '2>&-' '"$train" small.json --set tensorboard=true --output err'
verify "the model is the same" same_model out/model.safetensors all/model.safetensors
check "a topology with stdout closed" 0 "ended well" closed '>&-' '"$STARLING_BUILD/bin/starling-topo" show ring -n 4'
check "predictions with stdout closed need a picture still" 2 "none\.png" bash -c '"$STARLING_BUILD/bin/starling-predict" out none.png >&-'

# What a program was asked for is an error where it is lost.
check "a dry run into a full disk" 5 "stdout could not be written: No space" bash -c '"$train" small.json --dry-run >/dev/full'
check "an evaluation into a full disk" 5 "stdout could not be written: No space" bash -c '"$train" --evaluate out >/dev/full'
check "a list into a full disk" 5 "stdout could not be written" bash -c '"$train" --list models >/dev/full'
check "a topology into a full disk" 5 "could not be written" bash -c '"$STARLING_BUILD/bin/starling-topo" show ring -n 4 >/dev/full'
check "a benchmark into a full disk" 5 "^starling-bench: \[output\] stdout could not be written: No space" bash -c '"$STARLING_BUILD/bin/starling-bench" augment --size 8 --repeats 1 >/dev/full'
check "a benchmark's JSON into a full disk" 5 "^starling-bench: \[output\] stdout could not be written: No space" bash -c \
  '"$STARLING_BUILD/bin/starling-bench" floor "$1" --json >/dev/full' _ "$root/configs/cifar10_resnet18.json"
for name in train predict prepare topo doctor bench; do
  check "starling-$name's help into a full disk" 5 "stdout could not be written: No space" bash -c '"$STARLING_BUILD/bin/starling-$1" --help >/dev/full' _ $name
done
check "a benchmark's help" 0 "--repeats" "$STARLING_BUILD/bin/starling-bench" augment --help
check "a benchmark with stdout closed" 0 "ended well" closed '>&-' '"$STARLING_BUILD/bin/starling-bench" augment --size 8 --repeats 1'
check "two ranks' dry run into a full disk" 5 "stdout could not be written" bash -c 'mpirun --oversubscribe -n 2 bash -c "exec \"\$train\" small.json --dry-run >/dev/full"'

# Nor is an error whose line nobody takes another one.
check "an error into a full disk" 2 "status 2" bash -c '"$train" none.json 2>/dev/full; s=$?; echo status $s; exit $s'
check "that of another program" 2 "status 2" bash -c '"$STARLING_BUILD/bin/starling-topo" show none -n 4 2>/dev/full; s=$?; echo status $s; exit $s'
check "a preparation whose reader goes" 141 "^20 pictures" bash -c '"$STARLING_BUILD/bin/starling-prepare" example pets --classes 2 --train 8 --val 2 && (sleep 0.3
  exec "$STARLING_BUILD/bin/starling-prepare" images pets shards --size 64) | true; exit "${PIPESTATUS[0]}"'
verify "ends quietly, and leaves no half a file" bash -c '[ ! -s .stderr ] && ! ls shards | grep tmp'

# News of a training run are none: it is said once, and training goes on.
check "training into a full disk" 0 "stdout takes no more \(No space" bash -c '"$train" small.json --output full >/dev/full'
verify "said once" bash -c '[ "$(grep -c "takes no more" .stderr)" = 1 ]'
verify "the losses are there" same_losses out full
check "training whose reader goes" 0 "stdout takes no more \(Broken pipe" bash -c '(sleep 0.3; "$train" small.json --output pipe; echo $? >pipe.status) | true; exit "$(cat pipe.status)"'
verify "the losses are there too" same_losses out pipe
finish
