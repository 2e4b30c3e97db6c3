#!/usr/bin/env bash
# optimizer.groups: parameters by name, with a rate and a weight decay of their own.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "mlp", "hidden": [32]}' '  "batch_size": 16,
  "steps": 12,
  "optimizer": {"type": "adamw", "lr": 0.02, "weight_decay": 0.1},
  "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}},' | sed '/"evaluate"/d' >run.json
dry() { "$train" run.json --dry-run --set "optimizer.groups=$1" "${@:2}"; }
go() { # FOLDER GROUPS [ARG...]
  ranks 2 "$train" run.json --output "$1" --set "optimizer.groups=$2" --set tensorboard=false --set threads=1 "${@:3}"
}
same() { same_model "$1/model.safetensors" "$2/model.safetensors"; }
differ() { ! same_model "$1/model.safetensors" "$2/model.safetensors"; }
export -f dry go same differ

check "no regular expression" 2 "groups\[0\]\.match: 'bn\(' is no regular expression .*e\.g\. bn\|bias" dry '[{"match":"bn("}]'
check "a name that is not there" 2 "groups\[0\]\.match: 'conv' is in the name of no parameter; names are " dry '[{"match":"conv"}]'
check "a key that groups do not have" 2 'groups\[0\]\.momentum' dry '[{"match":"bias","momentum":0.5}]'
check "without a pattern" 2 'groups\[0\]\.match' dry '[{"lr_scale":0.5}]'
check "an algorithm that has the optimizer's formulas" 2 'quasi-global momentum has the optimizer' \
  dry '[{"match":"bias"}]' --set optimizer.type=sgd --set sync.algorithm=qgm --set sync.topology.type=complete

check "one rate for all" 0 'step 12/12' go plain '[]'
check "a group like the rest" 0 'step 12/12' go alike '[{"match":"bias"}]'
verify "changes no bit" same plain alike
check "half the rate for all" 0 'step 12/12' go half '[{"match":".","lr_scale":0.5}]' --set optimizer.lr=0.04
verify "is half the rate" same plain half
check "no decay for all" 0 'step 12/12' go bare '[{"match":"weight","weight_decay":0}]'
check "no decay" 0 'step 12/12' go none '[]' --set optimizer.weight_decay=0
verify "is no decay" same bare none
verify "and decay is another thing" differ plain none
check "the first that matches wins" 0 'step 12/12' go first '[{"match":"weight"},{"match":"weight|bias","lr_scale":0.1}]'
check "biases alone" 0 'step 12/12' go biases '[{"match":"bias$","lr_scale":0.1}]'
verify "is the same" same first biases
verify "and not all at one rate" differ plain biases
check "decay on biases, because the group says so" 0 'step 12/12' go decayed '[{"match":"bias","weight_decay":0.1}]'
check "as with decay on all" 0 'step 12/12' go everywhere '[]' --set optimizer.decay=all
verify "is the same" same decayed everywhere
check "a run that is saved" 0 'step 12/12' go saved '[{"match":"bias$","lr_scale":0.1}]' --set checkpoint.every_steps=5
rm -rf saved/checkpoints/step-12 saved/model.safetensors
check "and resumed" 0 'step 12/12' go saved '[{"match":"bias$","lr_scale":0.1}]' --set checkpoint.every_steps=5 --resume latest
verify "has the same bits" same saved biases
for rule in lars lamb muon adafactor; do
  eps=1e-6
  [ $rule = adafactor ] && eps='[1e-6, 1e-3]'
  check "$rule, one rate for all" 0 'step 12/12' go $rule '[]' --set optimizer.type=$rule --set "optimizer.eps=$eps"
  check "$rule, a group like the rest" 0 'step 12/12' go $rule-alike '[{"match":"bias"}]' --set optimizer.type=$rule --set "optimizer.eps=$eps"
  verify "changes no bit" same $rule $rule-alike
  check "$rule, saved" 0 'step 12/12' go $rule-saved '[]' --set optimizer.type=$rule --set "optimizer.eps=$eps" --set checkpoint.every_steps=5
  rm -rf $rule-saved/checkpoints/step-12 $rule-saved/model.safetensors
  check "$rule, resumed" 0 'step 12/12' go $rule-saved '[]' --set optimizer.type=$rule --set "optimizer.eps=$eps" --set checkpoint.every_steps=5 --resume latest
  verify "has the same bits" same $rule $rule-saved
done
verify "and lamb is not adamw" differ plain lamb
verify "and adafactor is neither" differ lamb adafactor
check "adafactor, half the rate for all" 0 'step 12/12' go adafactor-half '[{"match":".","lr_scale":0.5}]' --set optimizer.type=adafactor --set 'optimizer.eps=[1e-6, 1e-3]' --set optimizer.lr=0.04 --set optimizer.weight_decay=0
check "adafactor, without decay" 0 'step 12/12' go adafactor-bare '[{"match":"weight","weight_decay":0}]' --set optimizer.type=adafactor --set 'optimizer.eps=[1e-6, 1e-3]'
verify "is half the rate, and no decay" same adafactor-half adafactor-bare
verify "and decay is another thing" differ adafactor adafactor-bare
check "adafactor, biases saved" 0 'step 12/12' go adafactor-biases '[{"match":"bias$","lr_scale":0.1}]' --set optimizer.type=adafactor --set 'optimizer.eps=[1e-6, 1e-3]' --set checkpoint.every_steps=5
verify "differs from one rate" differ adafactor adafactor-biases
cp adafactor-biases/model.safetensors wanted.safetensors
rm -rf adafactor-biases/checkpoints/step-12 adafactor-biases/model.safetensors
check "adafactor, biases resumed" 0 'step 12/12' go adafactor-biases '[{"match":"bias$","lr_scale":0.1}]' --set optimizer.type=adafactor --set 'optimizer.eps=[1e-6, 1e-3]' --set checkpoint.every_steps=5 --resume latest
verify "has the same bits" same_model adafactor-biases/model.safetensors wanted.safetensors
muon() { go "$1" "$2" --set optimizer.type=muon --set optimizer.eps=1e-6 "${@:3}"; }
export -f muon
check "muon, a matrix that is adamw's" 0 'step 12/12' muon muon-some '[{"match":"^1","orthogonal":false}]'
verify "differs from all matrices" differ muon muon-some
check "muon, all of it adamw's" 0 'step 12/12' muon muon-none '[]' --set optimizer.orthogonal=false --set optimizer.weight_decay=0.1
check "adamw itself" 0 'step 12/12' go adamw '[]' --set optimizer.type=adamw --set optimizer.eps=1e-6 --set optimizer.weight_decay=0.1
verify "is the same" same muon-none adamw
check "a key that changes the states" 2 "groups\[0\]\.match: 'bias' changes which tensors" dry '[{"match":"bias","momentum":0.5}]' --set optimizer.type=sgd
finish
