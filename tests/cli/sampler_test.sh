#!/usr/bin/env bash
# data.sampler and data.cache: what is refused, resume in the middle of an epoch to the bit, a cache that changes no bit.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# 32 steps an epoch on two ranks.
config '{"type": "mlp", "hidden": [32]}' '  "batch_size": 16,
  "steps": 40,
  "optimizer": {"type": "sgd", "lr": 0.02},
  "checkpoint": {"every_steps": 20, "keep": 9},' >run.json
measured='data.sampler={"type": "balanced", "complexity": "measured", "random_level": 0.1}'
with() { "$train" run.json --set "$@"; }
two() { ranks 2 "$train" run.json "$@"; }
export -f with two
export measured

check "--list samplers" 0 "^balanced$" "$train" --list samplers
refused() { # NAME PATTERN SETTING...
  local name=$1 pattern=$2 settings=()
  shift 2
  for setting in "$@"; do settings+=(--set "$setting"); done
  check "$name" 2 "$pattern" "$train" run.json "${settings[@]}" --dry-run
}
refused "an unknown sampler" "data.sampler.type: unknown sampler 'balancd'; did you mean 'balanced'" data.sampler=balancd
refused "a misspelt key of a sampler" "data.sampler.rndom_level: unknown key; did you mean 'random_level'" 'data.sampler={"type": "balanced", "rndom_level": 0.1}'
refused "a key of balanced with shuffle" "data.sampler.random_level: unknown key" data.sampler.random_level=0.1
refused "too much noise" "data.sampler.random_level: expected a number 0 … 1" 'data.sampler={"type": "balanced", "complexity": "measured", "random_level": 2}'
refused "a data set that says no cost" "data.sampler.complexity: is declared, but the samples of synthetic say no cost; allowed: measured" data.sampler=balanced
refused "ranks that have samples of their own" "data.sampler.type: is balanced.*data.partition.type is dirichlet; allowed: shuffle" "$measured" data.partition.type=dirichlet
refused "an unknown cache" "data.cache.type: unknown value 'disk'; allowed: none, memory" data.cache=disk
refused "a misspelt key of a cache" "data.cache.limt_mib: unknown key; did you mean 'limit_mib'" 'data.cache={"type": "memory", "limt_mib": 1}'
refused "a limit of nothing" "data.cache.limit_mib: expected a number > 0" 'data.cache={"type": "memory", "limit_mib": 0}'
refused "a limit below a sample" "data.cache.limit_mib: is 0.001.*needed: >= 0.003" 'data.cache={"type": "memory", "limit_mib": 0.001}'
check "a text is a type, and its keys can be set" 0 '"limit_mib": 3' with data.cache=memory --set data.cache.limit_mib=3 --dry-run

# The plain order, named or not.
check "without a sampler" 0 "" two --output plain
check "with shuffle" 0 "" two --set data.sampler=shuffle --output named
verify "the same bits" same_model plain/model.safetensors named/model.safetensors

# Measured complexities: the checkpoint has them, so that the order goes on.
check "balanced by measured complexities" 0 "^reading a training sample takes .* measured on 1024 samples" two --set "$measured" --output straight
verify "each rank's checkpoint has the same" python3 - <<'PY'
import json, struct
def complexities(rank):
    data = open(f"straight/checkpoints/step-20/rank-{rank}.safetensors", "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + length])["data.complexity"]
    assert entry["dtype"] == "F32" and entry["shape"] == [1024], entry
    begin, end = entry["data_offsets"]
    return data[8 + length + begin:8 + length + end]
first = complexities(0)
assert first == complexities(1) and min(struct.unpack("<1024f", first)) > 0
PY
verify "the order is another one" bash -c '! same_model plain/model.safetensors straight/model.safetensors'
cp -r straight again
rm -r again/checkpoints/step-40 again/summary.json again/model.safetensors
check "resume in the middle of an epoch" 0 "continuing after step 20" two --set "$measured" --output again --resume latest
verify "measures nothing" bash -c '! grep -q "reading a training sample" "$1"' _ "$work/.out"
verify "and comes to the same bits" same_model straight/model.safetensors again/model.safetensors
check "resume with another sampler is refused" 2 "data.sampler" two --output again --set steps=41 --resume latest
check "and with more noise" 2 "data.sampler.random_level" two --set "$measured" --set data.sampler.random_level=0.2 --set steps=41 --output again --resume latest

# The cache, in a run of three epochs with two tests.
sed 's/"every_epochs": 0/"every_epochs": 1/; s/"steps": 40/"epochs": 3/' run.json >epochs.json
cached() { ranks 2 "$train" epochs.json --set data.cache=memory "$@"; }
export -f cached
check "three epochs" 0 "" ranks 2 "$train" epochs.json --output uncached
check "with a cache" 0 "^cache: room for 1280 of 1280 samples, 3.8 MiB shared by the 2 ranks of a host" cached --output cached
verify "the same bits" same_model uncached/model.safetensors cached/model.safetensors
verify "and losses" same_losses uncached cached
# A rank that is ahead may read what another one is decoding at the time.
verify "each sample is decoded about once" python3 - <<'PY'
import json
cache = json.load(open("cached/summary.json"))["cache"]
assert 1250 <= cache["samples"] <= 1280 and cache["bytes"] == cache["samples"] * 3076, cache
assert 1280 <= cache["decoded"] < 1400, cache
assert cache["hits"] + cache["decoded"] >= 3 * (1024 + 256), cache
PY
verify "without one the summary has no counts" bash -c '! grep -q cache uncached/summary.json'
check "with a cache for some" 0 "room for 340 of 1280 samples" cached --set data.cache.limit_mib=1 --output some
verify "the same bits" same_model uncached/model.safetensors some/model.safetensors
verify "within the limit" python3 -c 'import json; c = json.load(open("some/summary.json"))["cache"]; assert c["bytes"] <= 2**20 and c["samples"] == 340 and c["hits"] > 500, c'
check "resume without it" 0 "continuing" ranks 2 "$train" epochs.json --set epochs=4 --output cached --resume latest
check "and with it" 0 "continuing" ranks 2 "$train" epochs.json --set data.cache=memory --set epochs=4 --output uncached --resume latest
verify "the same bits" same_model uncached/model.safetensors cached/model.safetensors
check "a dry run counts it" 0 "3.8 MiB cached samples;|1.9 MiB cached samples;" cached --dry-run
verify "a rank and a host" grep -q "^cache: 1280 of 1280 samples, 3.0 KiB each; 1.9 MiB of host memory a rank, 3.8 MiB a host" .stdout
check "with both, three ranks" 0 "" ranks 3 "$train" epochs.json --set data.cache=memory --set "$measured" --output both
check "a test reads each sample once, and keeps none" 0 '"samples":256' "$train" epochs.json --set data.cache=memory --evaluate cached/model.safetensors
finish
