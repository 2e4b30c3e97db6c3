#!/usr/bin/env bash
# What a user can get wrong in arguments and config: exit status 2 and one line that says what, where, and what would be right.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
with() { "$train" small.json --dry-run --set "$1"; }
text() { # JSON: as a config of its own
  printf '%s' "$1" >given.json
  "$train" given.json --dry-run
}
export -f with text

# arguments
check "no config" 2 "[Cc]onfig" "$train"
check "a config that is not there" 2 "no-such\.json" "$train" no-such.json
check "a folder as config" 2 "configs" "$train" "$root/configs"
check "an unknown option" 2 "--no-such" "$train" small.json --no-such
check "a misspelt option" 2 "did you mean '--output'.*see starling-train --help" "$train" small.json --ouput x
check "a misspelt option of a benchmark" 2 "did you mean '--optimizer'.*see starling-bench exchange --help" "$build/bin/starling-bench" exchange --optimiser adamw
check "a benchmark that there is not" 2 "^starling-bench: \[arguments\] unknown subcommand 'exchang'; did you mean 'exchange'\?; known: " "$build/bin/starling-bench" exchang
check "no benchmark" 2 "^starling-bench: \[arguments\] .*see starling-bench --help" "$build/bin/starling-bench"
check "a benchmark's number out of range" 2 "^starling-bench: \[arguments\] --repeats: .*see starling-bench update --help" "$build/bin/starling-bench" update --repeats 0
check "a benchmark's number that is none" 2 "^starling-bench: \[arguments\] --mb: .*see starling-bench exchange --help" "$build/bin/starling-bench" exchange --mb nan
check "a benchmark's config that is not there" 2 "^starling-bench: \[.*none\.json" "$build/bin/starling-bench" floor none.json
verify "in one line" bash -c '[ "$(grep -c . .stderr)" = 1 ]'
check "an unknown kind of --list" 2 "models" "$train" --list modles
check "--set without a value" 2 "steps" "$train" small.json --dry-run --set steps

# names, with the nearest one
check "unknown key" 2 "batchsize.*batch_size" with batchsize=4
check "unknown key inside" 2 "optimizer\.learning_rate|optimizer.*learning_rate" with optimizer.learning_rate=1
check "unknown key in another case" 2 "Batch_Size.*batch_size" with Batch_Size=4
check "unknown model" 2 "model\.type.*resnet21.*resnet20" with model='{"type": "resnet21"}'
check "unknown topology" 2 "topology\.type.*rnig.*ring" with sync.topology.type=rnig
check "unknown optimizer" 2 "optimizer\.type.*adamww.*adamw" with optimizer='{"type": "adamww"}'
check "unknown schedule" 2 "schedule\.type.*cosin.*cosine" with schedule.type=cosin
check "unknown algorithm" 2 "algorithm.*gosip.*gossip" with sync.algorithm=gosip
check "unknown data" 2 "data\.type.*cifar11.*cifar10" with data='{"type": "cifar11"}'
check "unknown layer" 2 "layers\[0\]\.type.*conv2.*conv2d" with model='{"type": "sequential", "layers": [{"type": "conv2"}]}'
check "unknown key of a layer" 2 "layers\[1\]\.bais.*bias" \
  with model='{"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_features": 10, "bais": false}]}'
check "a misspelt key that is required" 2 "layers\[1\]\.out_features" \
  with model='{"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_feature": 10}]}'

# types and ranges
check "a text for a number" 2 "batch_size.*(number|integer)" with batch_size='"many"'
check "a fraction for an integer" 2 "batch_size.*integer" with batch_size=1.5
check "a number for an object" 2 "model.*object" with model=3
check "an object given as text" 2 "data.*object" with data=synthetic
check "zero batch size" 2 "batch_size.*>= *1|batch_size.*1" with batch_size=0
check "negative learning rate" 2 "optimizer\.lr.*-1" with optimizer.lr=-1
check "an infinite number" 2 "1e999|optimizer\.lr|finite" with optimizer.lr=1e999
check "a list's bad value" 2 "optimizer\.betas" with optimizer='{"type": "adamw", "betas": [0.9, 1.5]}'
check "label smoothing of 1" 2 "label_smoothing" with loss.label_smoothing=1
check "bucket_mb of 0" 2 "bucket_mb" with sync.bucket_mb=0
check "an absurd batch" 2 "batch_size" with batch_size=1000000
check "accumulate above an epoch" 2 "accumulate" with accumulate=100
check "too few classes" 2 "num_classes" with model.num_classes=5
check "a global clip_norm in the backward pass" 2 "update.*(after_backward|clip)" "$train" small.json --dry-run --set clip_norm=1 --set sync.update=in_backward
check "a precision that does not exist" 2 "precision.*bf32.*bf16" with precision=bf32
check "a missing GPU" 2 "cuda|GPU" "$train" small.json --device cuda --set steps=1 --output gpu

# files
check "the same key twice" 2 "given\.json.*batch_size" text '{"batch_size": 1, "batch_size": 2}'
check "malformed JSON names the line" 2 "given\.json.*(line )?2" text '{"steps": 1,
 "batch_size": }'
check "an empty file" 2 "given\.json" text ''
check "a list at the top" 2 "given\.json.*object" text '[1]'
check "a hundred thousand levels" 2 "given\.json" bash -c 'head -c 100000 /dev/zero | tr "\0" "[" >given.json; "$train" given.json --dry-run'
check "epochs and steps" 2 "steps.*epochs|epochs.*steps" text '{"model": {"type": "mlp"}, "data": {"type": "synthetic"}, "steps": 1, "epochs": 1}'
check "neither epochs nor steps" 2 "epochs.*steps|steps.*epochs" text '{"model": {"type": "mlp"}, "data": {"type": "synthetic"}}'
check "no model" 2 "model" text '{"data": {"type": "synthetic"}, "steps": 1}'
check "no data" 2 "data" text '{"model": {"type": "mlp"}, "steps": 1}'
check "a layer that does not fit" 2 "1|conv" with model='{"type": "sequential", "layers": [{"type": "flatten"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3}]}'
check "a plug-in that is not there" 2 "plugins.*libnone\.so" with plugins='["./libnone.so"]'
: >libempty.so
check "a plug-in that is no library" 2 "plugins.*libempty\.so" with plugins='["./libempty.so"]'
check "init that is not there" 2 "none\.safetensors" "$train" small.json --set init=none.safetensors --output init1
printf '\377\377\377\377\377\377\377\177{}' >huge.safetensors
check "init with a header of 2^63" 2 "huge\.safetensors" "$train" small.json --set init=huge.safetensors --output init2
check "a bad init leaves no output folder behind" 0 "no folder" bash -c "test ! -e init2 && echo no folder"

# ranks
check "a world size that does not fit" 2 "one-peer-exp.*3" ranks 3 "$train" small.json --dry-run --set sync.topology.type=one-peer-exp
check "one rank complains once" 2 "base-2" ranks 3 "$train" small.json --dry-run --set sync.topology.type=one-peer-exp
finish
