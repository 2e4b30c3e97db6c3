#!/usr/bin/env bash
# sync.algorithm: what is refused before training, and that evaluation, a kill and a resume change no bit of what algorithms keep.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
config '{"type": "mlp", "hidden": [32]}' '  "batch_size": 16,
  "steps": 24,
  "optimizer": {"type": "sgd", "lr": 0.02, "momentum": 0.9},
  "sync": {"bucket_mb": 0.001},' | sed '/"evaluate"/d' >run.json
dry() { # RANKS ALGORITHM TOPOLOGY [ARG...]
  local count=$1 algorithm=$2 topology=$3
  shift 3
  ranks "$count" "$train" run.json --dry-run --set "sync.algorithm=$algorithm" --set "sync.topology.type=$topology" "$@"
}
export -f dry

check "all are listed" 0 '^push_sum$' "$train" --list algorithms
check "at a terminal with a line on each" 0 '^push_sum +gossip over one-way graphs' \
  python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "$train" --list algorithms
check "what grows is refused" 2 "DecentLaM makes the ranks' disagreement 1\.[0-9]+ times as large in every step on 'complete'.*topologies that fit|not for the algorithm DecentLaM" \
  dry 4 '{"type":"decentlam"}' one-peer-exp
check "D2 on a graph that mixes too fast" 2 "D2 makes the ranks' disagreement 1\.[0-9]+ times .*'base-2' for 6 ranks.*algorithms that fit this one: exact_diffusion, gossip" \
  dry 6 '{"type":"exact_diffusion","lazy":false}' base-2
check "what does not is told with its rate" 0 'disagreement × 0\.[0-9]* a step' dry 4 '{"type":"qgm"}' one-peer-exp
check "an optimizer that does not fit" 2 'sync\.algorithm: quasi-global momentum does not go with the optimizer adamw; allowed: sgd' \
  dry 2 '{"type":"qgm"}' ring --set optimizer='{"type":"adamw"}'
check "momentum that is not there" 2 'momentum tracking does not go with this optimizer: it needs a momentum above 0' \
  dry 2 '{"type":"momentum_tracking"}' ring --set optimizer.momentum=0
check "a key of another type" 2 'sync\.algorithm\.outer_lr: is not a key of local_sgd, but of diloco' dry 2 '{"type":"local_sgd","outer_lr":1}' ring
check "a period beyond the run" 2 'sync\.algorithm\.period: is 500, but the run has 24 steps' dry 2 '{"type":"diloco"}' ring
check "an interval whose mix would come after the end" 2 'sync\.algorithm\.interval: is 24, but the run has 24 steps, and what an exchange brings is used in the step after it; allowed: <= 23' \
  dry 2 '{"type":"gossip","interval":24}' ring
check "which atc uses in its own step" 0 'topology: ring' dry 2 '{"type":"gossip","interval":24,"order":"atc"}' ring
check "a mean of all that would come after the end" 2 'sync\.algorithm\.global_every: is 6 exchanges of 4 steps, but the run has 24 steps, and .*; allowed: <= 5' \
  dry 2 '{"type":"gossip","interval":4,"global_every":6}' ring
check "states that would be mixed after the end" 2 'sync\.algorithm\.mix_states: is 24, but the run has 24 steps, and .*; allowed: <= 23' \
  dry 2 '{"type":"gossip","mix_states":24}' ring
check "a period that does not divide it" 0 'sync\.algorithm\.period: 7 steps do not divide' dry 2 '{"type":"local_sgd","period":7}' ring
check "fragments that do not divide the period" 2 'fragments: is 4, which does not divide the period of 6' dry 2 '{"type":"diloco","period":6,"fragments":4}' ring
check "a delay as long as a fragment's turn" 2 'delay: is 3, but outer steps are 3 steps apart; allowed: < 3' \
  dry 2 '{"type":"diloco","period":6,"fragments":2,"delay":3}' ring
check "more fragments than buckets" 2 'run\.json: sync\.algorithm\.fragments: is 12, but the model has [0-9]+ buckets?; allowed' dry 2 '{"type":"diloco","period":12,"fragments":12}' ring
check "states that are reset in fp16" 2 'algorithm: local SGD does not go with fp16: states is reset, but in fp16 each rank' dry 2 '{"type":"local_sgd","states":"reset"}' ring --set precision=fp16
check "a scale of the rate where gradients are means" 2 'sync\.lr_scale: is .* but all-reduce averages the gradients' dry 2 allreduce ring --set sync.lr_scale=2
check "a correction for noise where gradients are means" 2 'noise_correction is for a rank' \
  dry 2 allreduce ring --set optimizer='{"type":"adamw","noise_correction":"ranks"}'
check "one-way rows are for push_sum" 2 'must sum to 1, but for algorithms that weigh what they received \(push_sum\)' \
  dry 2 gossip custom --set 'sync.topology.rounds=[{"rows":[[[0,0.5]],[[0,0.5],[1,1.0]]]},{"rows":[[[0,1.0],[1,0.5]],[[1,0.5]]]}]'
check "which takes them" 0 'custom, 2 ranks' \
  dry 2 push_sum custom --set 'sync.topology.rounds=[{"rows":[[[0,0.5]],[[0,0.5],[1,1.0]]]},{"rows":[[[0,1.0],[1,0.5]],[[1,0.5]]]}]'
check "error feedback of what is not encoded" 2 'sync\.exchange: is fp32, but sync\.algorithm\.error_feedback is about numbers that are encoded; allowed: bf16, int8' \
  dry 2 '{"type":"gossip","error_feedback":true}' ring
check "a block that is no multiple of 32" 2 'sync\.algorithm\.block: is 48; allowed: multiples of 32' dry 2 '{"type":"choco","block":48}' static-ring
check "an encoded exchange of averages" 2 'sync\.exchange: is int8, but local SGD exchanges in full precision; allowed: fp32, or one of these algorithms: gossip, qgm' \
  dry 2 local_sgd ring --set sync.exchange=int8
check "choco wants one symmetric round" 2 "run\.json: sync\.topology\.type: 'one-peer-exp' for 4 ranks is not for the algorithm Choco: its rounds differ; these are: .*static-ring" \
  dry 4 choco one-peer-exp
check "a topology that does not take the ranks" 2 'run\.json: sync\.topology\.type: ring needs an even number of ranks, not 3; for 3 ranks: base-2' dry 3 gossip ring
check "how choco mixes" 0 'disagreement × 0\.9 a step' dry 4 '{"type":"choco"}' static-ring
check "a part of a mix is in that number" 0 'disagreement × 0\.9933 a step' dry 4 '{"type":"gossip","mixing":0.01}' static-ring
check "an outer step that leaves ranks as they are" 2 'sync\.algorithm\.blend: is 1, so that ranks keep' dry 2 '{"type":"diloco","period":8,"blend":1}' ring
check "nesterov where the formulas are without" 2 'DecentLaM does not go with this optimizer: .*; allowed: "nesterov": false' \
  dry 4 decentlam static-ring --set optimizer.nesterov=true
check "slowmo has gossip's periods too" 2 'sync\.algorithm\.interval: is 5000, but the run has 24 steps' \
  dry 2 '{"type":"slowmo","period":8,"inner":"gossip","interval":5000}' ring
check "averages that begin when the run ends" 2 'sync\.algorithm\.start: is 24, but the run has 24 steps; allowed: <= 23' \
  dry 2 '{"type":"local_sgd","period":4,"start":24}' ring
check "a period longer than what is left" 2 'sync\.algorithm\.period: is 8, but the run has 4 steps from step 20 on; allowed: <= 4' \
  dry 2 '{"type":"local_sgd","period":8,"start":20}' ring
check "a period that does not divide what is left" 0 'period: 8 steps do not divide the run.s 20 from step 4 on: its last 4' \
  dry 2 '{"type":"local_sgd","period":8,"start":4}' ring
check "blocks of what is not encoded" 2 'sync\.exchange: is fp32, but sync\.algorithm\.block is about numbers that are encoded' dry 2 '{"type":"gossip","block":64}' ring
check "a look at nothing" 2 'sync\.algorithm\.check_every: is how often global_above is looked at' dry 2 '{"type":"gossip","check_every":5}' ring
check "nodes that nobody goes by" 2 'sync\.algorithm\.ranks_per_node: is for hierarchical, which is false' dry 2 '{"type":"allreduce","ranks_per_node":2}' ring
check "nodes without their gradients" 2 'sync\.algorithm\.ranks_per_node: is for .gradients.: .node., and they are local' \
  dry 2 '{"type":"local_sgd","ranks_per_node":2}' ring
check "states to mix that are not there" 2 'sync\.algorithm: gossip mixes the optimizer.s states too, and sgd keeps none' \
  dry 2 '{"type":"gossip","mix_states":1}' ring --set optimizer.momentum=0
check "the ring that low_precision has by itself" 0 'topology: static-ring, 4 ranks' ranks 4 "$train" run.json --dry-run --set sync.algorithm=low_precision
check "qadam wants adam" 2 'QAdam does not go with the optimizer sgd; allowed: adam, adamw' dry 2 '{"type":"qadam","warmup":3}' ring
check "qadam's warm-up beyond the run" 2 'sync\.algorithm\.warmup: is 100, but the run has 24 steps' \
  dry 2 qadam ring --set optimizer='{"type":"adamw"}'
switch() { dry 2 gossip ring --set "sync.switch=$1"; }
export -f switch
check "a switch is told" 0 'from step 12: local SGD$' switch '[{"step":12,"algorithm":"local_sgd"}]'
check "switches out of order" 2 'sync\.switch\[1\]: begins at step 5, but the one before at step 12, and the run has 24; allowed: ascending' \
  switch '[{"step":12,"algorithm":"local_sgd"},{"step":5,"algorithm":"gossip"}]'
check "a switch beyond the run" 2 'sync\.switch\[0\]: begins at step 24' switch '[{"step":24,"algorithm":"local_sgd"}]'
check "a switch without a time" 2 'sync\.switch\[0\]\.step: or epoch must say when' switch '[{"algorithm":"local_sgd"}]'
check "a switch whose time is misspelt" 2 "sync\\.switch\\[0\\]\\.stepp: unknown key; did you mean 'step'" switch '[{"stepp":3,"algorithm":"local_sgd"}]'
check "a switch to what does not fit" 2 'sync\.switch\[0\]\.algorithm: QAdam does not go with the optimizer sgd' switch '[{"step":3,"algorithm":"qadam"}]'
check "a switch to what grows" 2 'run\.json: sync\.switch\[0\]\.algorithm: D2 makes' \
  dry 4 gossip ring --set 'sync.switch=[{"step":3,"algorithm":{"type":"exact_diffusion","lazy":false},"topology":{"type":"base-2"}}]'
check "a period beyond its part" 2 'sync\.switch\[0\]\.algorithm\.period: is 8, but its part of the run has 4 steps' \
  switch '[{"step":20,"algorithm":"local_sgd"}]'
check "a switch after states that are reset" 2 'sync\.switch\[1\]\.algorithm: follows local SGD with states reset' \
  switch '[{"step":2,"algorithm":{"type":"local_sgd","states":"reset"}},{"step":12,"algorithm":"gossip"}]'
check "fragments beyond the buckets of a later part" 2 'sync\.switch\[0\]\.algorithm\.fragments: is 12, but the model has' \
  switch '[{"step":2,"algorithm":{"type":"diloco","period":12,"fragments":12}}]'
check "the topology of an algorithm that needs none is for those that follow" 0 'from step 12: gossip over ring' \
  dry 2 allreduce ring --set 'sync.switch=[{"step":12,"algorithm":"gossip"}]'
check "a later part whose topology is that of the one before" 2 \
  "run\.json: sync\.switch\[0\]\.topology: is not given, and the one before does not fit: 'ring' for 4 ranks is not for .*; give one here \(these are: .*static-ring" \
  dry 4 gossip ring --set 'sync.switch=[{"step":3,"algorithm":"low_precision"}]'
check "nodes of the topology that do not divide the ranks" 2 'run\.json: sync\.topology\.ranks_per_node: is 3 for 4 ranks, and all-reduce takes it; allowed: what divides them' \
  dry 4 '{"type":"allreduce","hierarchical":true}' hierarchical --set sync.topology.ranks_per_node=3
check "an unknown algorithm is told with the file" 2 "run\.json: sync\.algorithm\.type: unknown algorithm 'gosip'" dry 2 gosip ring
check "ranks a node that do not divide the ranks" 2 'sync\.algorithm\.ranks_per_node: is 3 for 4 ranks; allowed: what divides them' \
  dry 4 '{"type":"allreduce","hierarchical":true,"ranks_per_node":3}' ring
check "averages by the clock are not repeatable" 2 'sync\.algorithm: asynchronous averaging adds a mean when it arrives.*allowed: "deterministic": false, or another algorithm' \
  dry 2 async ring
check "nor is a later part that has them" 2 'sync\.switch\[0\]\.algorithm: asynchronous averaging' switch '[{"step":12,"algorithm":"async"}]'
check "where that is allowed they are told" 0 'asynchronous averaging' dry 2 '{"type":"async","interval_ms":1}' ring --set deterministic=false
check "their warm-up beyond the run" 2 'sync\.algorithm\.warmup: is 25, but the run has 24 steps' dry 2 '{"type":"async","warmup":25}' ring --set deterministic=false
check "what it keeps is counted" 0 'of the algorithm' dry 2 '{"type":"gradient_tracking"}' ring

train_one() { # FOLDER ALGORITHM TOPOLOGY [ARG...]
  local folder=$1 algorithm=$2 topology=$3
  shift 3
  ranks 4 "$train" run.json --output "$folder" --set "sync.algorithm=$algorithm" --set "sync.topology.type=$topology" --set tensorboard=false \
    --set threads=1 "$@"
}
export -f train_one
same() { # NAME ALGORITHM TOPOLOGY [ARG...]: never stopped; tested all the time; resumed from step 20
  local often=("${@:4}" --set evaluate.every_steps=3 --set checkpoint.every_steps=5)
  check "$1" 0 'step 24/24' train_one "$1" "$2" "$3" "${@:4}" --set evaluate.every_epochs=0 --set checkpoint.every_epochs=0
  check "$1, tested and saved" 0 'step 24/24' train_one "$1-often" "$2" "$3" "${often[@]}"
  verify "$1: the same bits" same_model "$1/model.safetensors" "$1-often/model.safetensors"
  rm -rf "$1-often/checkpoints/step-24" "$1-often/model.safetensors"
  check "$1, resumed" 0 'step 24/24' train_one "$1-often" "$2" "$3" "${often[@]}" --resume latest
  verify "$1: the same bits again" same_model "$1/model.safetensors" "$1-often/model.safetensors"
}
same control '{"type":"gossip","global_above":0.001,"check_every":3,"interval":2}' ring
same tracking gradient_tracking one-peer-exp
same streaming '{"type":"diloco","period":6,"fragments":2,"delay":2}' ring
same slow '{"type":"slowmo","period":5,"inner":"gossip"}' ring
same feedback '{"type":"gossip","error_feedback":true,"consensus_step":0.7,"block":32}' ring --set sync.exchange=int8
same choco '{"type":"choco","block":32,"consensus_step":0.5}' static-ring
same replicas '{"type":"low_precision","interval":2}' static-ring
same bytes bytegrad ring
same momenta '{"type":"qadam","warmup":6,"error_feedback":true}' ring --set optimizer='{"type":"adamw"}'
# By the clock: no bits to compare, but all of it goes on.
clock() { # FOLDER ARG...
  local folder=$1
  shift
  train_one "$folder" '{"type":"async","interval_ms":0,"warmup":3}' ring --set deterministic=false --set checkpoint.every_steps=5 --set evaluate.every_steps=3 "$@"
}
export -f clock
check "averages by the clock" 0 'step 24/24' clock by-clock
rm -rf by-clock/checkpoints/step-24
check "averages by the clock, resumed" 0 'step 24/24' clock by-clock --resume latest
check "averages by the clock over messages" 0 'step 24/24' clock by-messages --set sync.transport=mpi
check "averages by the clock on one rank" 0 'step 24/24' "$train" run.json --output alone --set sync.algorithm=async --set deterministic=false --set threads=1
check "into them and out of them" 0 'step 24/24' clock switched-clock \
  --set 'sync.switch=[{"step":7,"algorithm":"gossip"},{"step":15,"algorithm":{"type":"async","interval_ms":1}}]'
lose_one() { # a rank of two that stops
  mpirun --oversubscribe -n 2 "$train" run.json --output lost --set 'sync.algorithm={"type":"async","interval_ms":1}' --set deterministic=false --set steps=1000000 \
    --set sync.timeout_s=3 --set threads=1 --set tensorboard=false --set checkpoint.every_epochs=0 >lost.log 2>&1 &
  local job=$! status=0
  for _ in $(seq 300); do [ "$(cat lost/metrics.jsonl 2>/dev/null | wc -l)" -ge 5 ] && break || sleep 0.1; done
  kill -STOP "$(pgrep -P "$job" -x starling-train | tail -1)"
  wait "$job" || status=$?
  cat lost.log
  return "$status"
}
export -f lose_one
check "a rank of them that stops is named" 3 'waited 3 s \(sync\.timeout_s\).*missing: rank [01] on host' lose_one
# Into and out of what keeps most; the second at a checkpoint.
same switched gradient_tracking one-peer-exp \
  --set 'sync.switch=[{"step":7,"algorithm":{"type":"diloco","period":4,"delay":2}},{"step":20,"algorithm":"gossip","topology":{"type":"ring"}}]'
same encoded-later allreduce ring --set sync.exchange=int8 \
  --set 'sync.switch=[{"step":7,"algorithm":{"type":"gossip","error_feedback":true}},{"step":18,"algorithm":"choco","topology":{"type":"static-ring"}}]'
finish
