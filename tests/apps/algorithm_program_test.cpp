// sync.algorithm as a user meets it: what is refused before training, and what a plan says. That a
// resume changes no bit is recipe_contract_test.cpp's.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

/// 24 steps on four or fewer ranks, in buckets of some hundred numbers.
std::string algorithm_config() {
  return test::short_config(R"({"type": "mlp", "hidden": [32]})", R"("batch_size": 16, "steps": 24,
    "optimizer": {"type": "sgd", "lr": 0.02, "momentum": 0.9}, "sync": {"bucket_mb": 0.001},)");
}

TEST_CASE("algorithms: what a plan says, and what is refused") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.check("all are listed", 1, 0, "^push_sum$", "--list algorithms");
  program.check("the ring that low_precision has by itself", 4, 0, "topology: static-ring, 4 ranks",
                "run.json --dry-run", {"sync.algorithm=low_precision"});
  program.play(R"table(
2 4 | what grows is refused | DecentLaM makes the ranks' disagreement 1\.[0-9]+ times as large in every step on 'complete'.*topologies that fit|not for the algorithm DecentLaM | {"type":"decentlam"} | one-peer-exp
2 6 | D2 on a graph that mixes too fast | D2 makes the ranks' disagreement 1\.[0-9]+ times .*'base-2' for 6 ranks.*algorithms that fit this one: exact_diffusion, gossip | {"type":"exact_diffusion","lazy":false} | base-2
0 4 | what does not is told with its rate | disagreement × 0\.[0-9]* a step | {"type":"qgm"} | one-peer-exp
2 2 | an optimizer that does not fit | sync\.algorithm: quasi-global momentum does not go with the optimizer adamw; allowed: sgd | {"type":"qgm"} | ring | optimizer={"type":"adamw"}
2 2 | momentum that is not there | momentum tracking does not go with this optimizer: it needs a momentum above 0 | {"type":"momentum_tracking"} | ring | optimizer.momentum=0
2 2 | a key of another type | sync\.algorithm\.outer_lr: is not a key of local_sgd, but of diloco | {"type":"local_sgd","outer_lr":1} | ring
2 2 | a period beyond the run | sync\.algorithm\.period: is 500, but the run has 24 steps | {"type":"diloco"} | ring
2 2 | an interval whose mix would come after the end | sync\.algorithm\.interval: is 24, but the run has 24 steps, and what an exchange brings is used in the step after it; allowed: <= 23 | {"type":"gossip","interval":24} | ring
0 2 | which atc uses in its own step | topology: ring | {"type":"gossip","interval":24,"order":"atc"} | ring
2 2 | a mean of all that would come after the end | sync\.algorithm\.global_every: is 6 exchanges of 4 steps, but the run has 24 steps, and .*; allowed: <= 5 | {"type":"gossip","interval":4,"global_every":6} | ring
2 2 | states that would be mixed after the end | sync\.algorithm\.mix_states: is 24, but the run has 24 steps, and .*; allowed: <= 23 | {"type":"gossip","mix_states":24} | ring
0 2 | a rate that rises | ^schedule\.min_lr: 1 is above optimizer\.lr, 0\.02: the rate rises to it$ | gossip | ring | schedule={"type":"cosine","min_lr":1}
0 2 | a fall longer than the run | ^schedule\.decay_steps: 100 are not fewer than the run's 24 | gossip | ring | schedule={"type":"wsd","decay_steps":100}
0 2 | reductions behind its end | ^schedule\.milestones: 100 is not before the end of the run's | gossip | ring | schedule={"type":"multistep","milestones":[100]}
0 2 | a warm-up of more epochs | ^schedule\.warmup_epochs: 500 are not fewer than the run's .*: its rate never comes to | gossip | ring | schedule={"type":"cosine","warmup_epochs":500}
0 2 | a warm-up that the fall meets | ^schedule: a warm-up of 20 and a decay of 10 steps overlap in the run's 24 | gossip | ring | schedule={"type":"wsd","warmup_steps":20,"decay_steps":10}
0 2 | a reduction behind its end | ^schedule\.step_size: 500 is not before the end of the run's | gossip | ring | schedule={"type":"step","step_size":500}
2 2 | slow weights that are never updated | lookahead\.every: is 100, but the run has 24 steps; allowed: <= 24 | gossip | ring | lookahead.every=100
0 2 | steps behind the last update of the slow weights | ^lookahead\.every: the last 4 of 24 steps have no effect | gossip | ring | lookahead.every=5
2 2 | an average that is never updated | ema\.every: is 100, but the run has 24 steps | gossip | ring | ema.every=100
2 2 | a comparison that is never made | sync\.verify: is 100, but the run has 24 steps | allreduce | ring | sync.verify=100
2 2 | more steps than numbers | epochs: are .*e\+[0-9]+ updates; allowed: <= 1e\+12 | gossip | ring | epochs=1e9 | data.limit=1000000000000 | data.shuffle=false
0 2 | samples that no step has | ^data: the last [0-9]+ of 100 samples are in no step of an epoch | gossip | ring | data.limit=100 | data.shuffle=false
0 2 | a period that does not divide it | sync\.algorithm\.period: 7 steps do not divide | {"type":"local_sgd","period":7} | ring
2 2 | fragments that do not divide the period | fragments: is 4, which does not divide the period of 6 | {"type":"diloco","period":6,"fragments":4} | ring
2 2 | a delay as long as a fragment's turn | delay: is 3, but outer steps are 3 steps apart; allowed: < 3 | {"type":"diloco","period":6,"fragments":2,"delay":3} | ring
2 2 | a delay as long as the period | sync\.algorithm\.delay: is 6, but averages are 6 steps apart; allowed: < 6 | {"type":"local_sgd","period":6,"delay":6} | ring
2 2 | a delay of a mix by the topology | sync\.algorithm\.delay: is 2, but a mix by the topology is used at once; allowed: 0, or | {"type":"local_sgd","period":6,"delay":2,"average":"topology"} | ring
2 2 | more fragments than buckets | run\.json: sync\.algorithm\.fragments: is 12, but the model has [0-9]+ buckets?; allowed | {"type":"diloco","period":12,"fragments":12} | ring
2 2 | states that are reset in fp16 | algorithm: local SGD does not go with fp16: states is reset, but in fp16 each rank | {"type":"local_sgd","states":"reset"} | ring | precision=fp16
2 2 | a scale of the rate where gradients are means | sync\.lr_scale: is .* but all-reduce averages the gradients | allreduce | ring | sync.lr_scale=2
2 2 | a correction for noise where gradients are means | noise_correction is for a rank | allreduce | ring | optimizer={"type":"adamw","noise_correction":"ranks"}
2 2 | one-way rows are for push_sum | must sum to 1, but for algorithms that weigh what they received \(push_sum\) | gossip | custom | sync.topology.rounds=[{"rows":[[[0,0.5]],[[0,0.5],[1,1.0]]]},{"rows":[[[0,1.0],[1,0.5]],[[1,0.5]]]}]
0 2 | which takes them | custom, 2 ranks | push_sum | custom | sync.topology.rounds=[{"rows":[[[0,0.5]],[[0,0.5],[1,1.0]]]},{"rows":[[[0,1.0],[1,0.5]],[[1,0.5]]]}]
2 2 | error feedback of what is not encoded | sync\.exchange: is fp32, but sync\.algorithm\.error_feedback is about numbers that are encoded; allowed: bf16, int8, int4 | {"type":"gossip","error_feedback":true} | ring
2 2 | nor is a part of the way to a mix | sync\.exchange: is fp32, but sync\.algorithm\.consensus_step is about numbers that are encoded | {"type":"gossip","consensus_step":0.5} | ring
0 2 | but for outer steps by gossip | ring, 2 ranks | {"type":"gossip_diloco","period":6,"consensus_step":0.5} | ring
2 2 | a block that is no multiple of 32 | sync\.algorithm\.block: is 48; allowed: multiples of 32 | {"type":"choco","block":48} | static-ring
2 2 | an encoded exchange of averages | sync\.exchange: is int8, but local SGD exchanges in full precision; allowed: fp32, or one of these algorithms: diloco, gossip, gossip_diloco, qgm | local_sgd | ring | sync.exchange=int8
2 2 | the largest numbers of a mix | sync\.exchange: is sparse, but gossip mixes all numbers; allowed: fp32, bf16, int8, int4, or one of these algorithms: diloco | gossip | ring | sync.exchange=sparse
2 2 | values of 3 bits | sync\.algorithm\.value_bits: is 3; allowed: 2, 4, 8 | {"type":"diloco","period":6,"value_bits":3} | ring | sync.exchange=sparse
2 2 | a share of a dense mean | sync\.algorithm\.share: does not go with sync.exchange fp32; leave it out, or set that to sparse | {"type":"diloco","period":6,"share":0.5} | ring
2 2 | feedback of a whole difference | sync\.algorithm\.error_feedback: does not go with sync.exchange fp32; | {"type":"diloco","period":6,"error_feedback":true} | ring
2 2 | a share of codes | sync\.algorithm\.aggregate: does not go with sync.exchange of codes alone | {"type":"diloco","period":6,"aggregate":"ranks"} | ring | sync.exchange=int4
2 2 | a block of one | sync\.algorithm\.block: is 1; allowed: multiples of 32 | {"type":"gossip","block":1} | ring | sync.exchange=int4
2 2 | a block for 16 bits of a place | sync\.algorithm\.block: is 131072; allowed with sync.exchange sparse: multiples of 32 to 65536 | {"type":"diloco","period":6,"block":131072} | ring | sync.exchange=sparse
2 2 | a decay of no residual | sync\.algorithm\.error_decay: is about error_feedback, which is false | {"type":"diloco","period":6,"error_decay":0.5} | ring | sync.exchange=int8
2 4 | choco wants one symmetric round | run\.json: sync\.topology\.type: 'one-peer-exp' for 4 ranks is not for the algorithm Choco: its rounds differ; these are: .*static-ring | choco | one-peer-exp
2 3 | a topology that does not take the ranks | run\.json: sync\.topology\.type: ring needs an even number of ranks, not 3; for 3 ranks: base-2 | gossip | ring
0 4 | how choco mixes | disagreement × 0\.9 a step | {"type":"choco"} | static-ring
0 4 | a part of a mix is in that number | disagreement × 0\.9933 a step | {"type":"gossip","mixing":0.01} | static-ring
2 2 | an outer step that leaves ranks as they are | sync\.algorithm\.blend: is 1, so that ranks keep | {"type":"diloco","period":8,"blend":1} | ring
2 4 | nesterov where the formulas are without | DecentLaM does not go with this optimizer: .*; allowed: "nesterov": false | decentlam | static-ring | optimizer.nesterov=true
2 2 | slowmo has gossip's periods too | sync\.algorithm\.interval: is 5000, but the run has 24 steps | {"type":"slowmo","period":8,"inner":"gossip","interval":5000} | ring
2 2 | averages that begin when the run ends | sync\.algorithm\.start: is 24, but the run has 24 steps; allowed: <= 23 | {"type":"local_sgd","period":4,"start":24} | ring
2 2 | a period longer than what is left | sync\.algorithm\.period: is 8, but the run has 4 steps from step 20 on; allowed: <= 4 | {"type":"local_sgd","period":8,"start":20} | ring
0 2 | a period that does not divide what is left | period: 8 steps do not divide the run.s 20 from step 4 on: its last 4 | {"type":"local_sgd","period":8,"start":4} | ring
2 2 | blocks of what is not encoded | sync\.exchange: is fp32, but sync\.algorithm\.block is about numbers that are encoded | {"type":"gossip","block":64} | ring
2 2 | a look at nothing | sync\.algorithm\.check_every: is how often global_above is looked at | {"type":"gossip","check_every":5} | ring
2 2 | nodes that nobody goes by | sync\.algorithm\.ranks_per_node: is for hierarchical, which is false | {"type":"allreduce","ranks_per_node":2} | ring
2 2 | nodes without their gradients | sync\.algorithm\.ranks_per_node: is for .gradients.: .node., and they are local | {"type":"local_sgd","ranks_per_node":2} | ring
2 2 | states to mix that are not there | sync\.algorithm: gossip mixes the optimizer.s states too, and sgd keeps none | {"type":"gossip","mix_states":1} | ring | optimizer.momentum=0
2 2 | qadam wants adam | QAdam does not go with the optimizer sgd; allowed: adam, adamw | {"type":"qadam","warmup":3} | ring
2 2 | qadam's warm-up beyond the run | sync\.algorithm\.warmup: is 100, but the run has 24 steps | qadam | ring | optimizer={"type":"adamw"}
0 2 | a switch is told | from step 12: local SGD$ | gossip | ring | sync.switch=[{"step":12,"algorithm":"local_sgd"}]
2 2 | switches out of order | sync\.switch\[1\]: begins at step 5, but the one before at step 12, and the run has 24; allowed: ascending | gossip | ring | sync.switch=[{"step":12,"algorithm":"local_sgd"},{"step":5,"algorithm":"gossip"}]
2 2 | a switch beyond the run | sync\.switch\[0\]: begins at step 24 | gossip | ring | sync.switch=[{"step":24,"algorithm":"local_sgd"}]
2 2 | a switch without a time | sync\.switch\[0\]\.step: or epoch must say when | gossip | ring | sync.switch=[{"algorithm":"local_sgd"}]
2 2 | a switch to what does not fit | sync\.switch\[0\]\.algorithm: QAdam does not go with the optimizer sgd | gossip | ring | sync.switch=[{"step":3,"algorithm":"qadam"}]
2 4 | a switch to what grows | run\.json: sync\.switch\[0\]\.algorithm: D2 makes | gossip | ring | sync.switch=[{"step":3,"algorithm":{"type":"exact_diffusion","lazy":false},"topology":{"type":"base-2"}}]
2 2 | a period beyond its part | sync\.switch\[0\]\.algorithm\.period: is 8, but its part of the run has 4 steps | gossip | ring | sync.switch=[{"step":20,"algorithm":"local_sgd"}]
2 2 | a switch after states that are reset | sync\.switch\[1\]\.algorithm: follows local SGD with states reset | gossip | ring | sync.switch=[{"step":2,"algorithm":{"type":"local_sgd","states":"reset"}},{"step":12,"algorithm":"gossip"}]
2 2 | fragments beyond the buckets of a later part | sync\.switch\[0\]\.algorithm\.fragments: is 12, but the model has | gossip | ring | sync.switch=[{"step":2,"algorithm":{"type":"diloco","period":12,"fragments":12}}]
0 2 | the topology of an algorithm that needs none is for those that follow | from step 12: gossip over ring | allreduce | ring | sync.switch=[{"step":12,"algorithm":"gossip"}]
2 4 | a later part whose topology is that of the one before | run\.json: sync\.switch\[0\]\.topology: is not given, and the one before does not fit: 'ring' for 4 ranks is not for .*; give one here \(these are: .*static-ring | gossip | ring | sync.switch=[{"step":3,"algorithm":"low_precision"}]
2 4 | nodes of the topology that do not divide the ranks | run\.json: sync\.topology\.ranks_per_node: is 3 for 4 ranks, and all-reduce takes it; allowed: what divides them | {"type":"allreduce","hierarchical":true} | hierarchical | sync.topology.ranks_per_node=3
2 2 | an unknown algorithm is told with the file | run\.json: sync\.algorithm\.type: unknown algorithm 'gosip' | gosip | ring
2 4 | ranks a node that do not divide the ranks | sync\.algorithm\.ranks_per_node: is 3 for 4 ranks; allowed: what divides them | {"type":"allreduce","hierarchical":true,"ranks_per_node":3} | ring
2 2 | averages by the clock are not repeatable | sync\.algorithm: asynchronous averaging adds a mean when it arrives.*allowed: "deterministic": false, or another algorithm | async | ring
2 2 | nor is a later part that has them | sync\.switch\[0\]\.algorithm: asynchronous averaging | gossip | ring | sync.switch=[{"step":12,"algorithm":"async"}]
0 2 | where that is allowed they are told | asynchronous averaging | {"type":"async","interval_ms":1} | ring | deterministic=false
2 2 | nor is a quorum | sync\.algorithm: DiLoCo with a quorum takes what has come by then.*allowed: "deterministic": false, or "quorum": 0 | {"type":"diloco","period":6,"quorum":2} | ring
2 2 | a quorum of more ranks than there are | sync\.algorithm\.quorum: is 3, but there are 2 ranks; allowed: <= 2 | {"type":"diloco","period":6,"quorum":3} | ring | deterministic=false
2 2 | a grace without a quorum | sync\.algorithm\.grace_ms: is for outer steps with a quorum | {"type":"diloco","period":6,"grace_ms":5} | ring
0 2 | a quorum is told | DiLoCo | {"type":"diloco","period":6,"quorum":2} | ring | deterministic=false
2 2 | their warm-up beyond the run | sync\.algorithm\.warmup: is 25, but the run has 24 steps | {"type":"async","warmup":25} | ring | deterministic=false
2 4 | neighbours' averages are compared with nothing | sync\.verify: .*allowed: off | {"type":"local_sgd","average":"topology"} | ring | sync.verify=1
2 4 | nor are one-way sums | sync\.verify: .*allowed: off | push_sum | directed-exp | sync.verify=1
2 4 | nor what a rank knows of its neighbours | sync\.verify: .*with  | choco | static-ring | sync.verify=1
2 4 | nor encoded numbers | sync\.verify: .*encoded numbers | gossip | ring | sync.verify=1 | sync.exchange=int8
2 4 | ranks that have not met | sync\.verify: is 4, but after none of the run's 24 steps | {"type":"local_sgd","period":8,"start":3} | ring | sync.verify=4
0 4 | that have | in all | {"type":"local_sgd","period":8} | ring | sync.verify=4
0 4 | at checkpoints | topology: ring | gossip | ring | sync.verify=checkpoint
2 4 | a word for how often | sync\.verify: .*always | gossip | ring | sync.verify=always
2 4 | never | sync\.verify: .*0 | gossip | ring | sync.verify=0
0 2 | what it keeps is counted | algorithm state | {"type":"gradient_tracking"} | ring
)table",
               "run.json --dry-run", {"sync.algorithm=", "sync.topology.type="});
  program.play(R"table(
0 4 | a mean that is waited for | ^exchange: every 8 steps a rank sends .* at 100 Mbit/s: .*, waited for; test loss \+0\.0 % | {"type":"diloco","period":8} | ring
0 4 | one that is hidden | , hidden behind 3 steps of .* or more; test loss | {"type":"diloco","period":8,"delay":3} | ring
0 4 | neighbours' anchors, and differences | , hidden behind 8 steps of .*, and .*, waited for; test loss \+[0-9.]+ % | {"type":"gossip_diloco","period":8,"mix_differences":true} | ring
0 4 | a share that nobody has measured | ; what it costs in learning has not been measured | {"type":"diloco","period":8,"share":0.25} | ring | sync.exchange=sparse
)table",
               "run.json --dry-run --network 0.1", {"sync.algorithm=", "sync.topology.type="});
  program.check("no bandwidth", 4, 2, "--network is 0; needed: Gbit/s above 0, or a file",
                "run.json --dry-run --network 0",
                {R"(sync.algorithm={"type":"diloco","period":8})"});
}

TEST_CASE("algorithms: averages by the clock, where there are no bits to compare") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.play(R"table(
let clock = sync.algorithm={"type":"async","interval_ms":0,"warmup":3} | sync.topology.type=ring | deterministic=false | checkpoint.every_steps=5 | evaluate.every_steps=3
0 4 | averages by the clock | step 24/24 | run.json --output clock | $clock
forget clock 24
0 4 | resumed | step 24/24 | run.json --output clock --resume latest | $clock
0 1 | on one rank | step 24/24 | run.json --output alone | sync.algorithm=async | deterministic=false
0 4 | into them and out of them | step 24/24 | run.json --output switched | $clock | sync.switch=[{"step":7,"algorithm":"gossip"},{"step":15,"algorithm":{"type":"async","interval_ms":1}}]
)table");
}

TEST_CASE("algorithms: outer steps with a quorum, whoever takes part, leave anchors equal") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.play(R"table(
let quorum = sync.algorithm={"type":"diloco","period":4,"fragments":2,"quorum":2,"grace_ms":0,"late":"carry"} | deterministic=false | log_every=1 | checkpoint.every_steps=8 | evaluate.every_steps=6 | sync.verify=4
0 4 | a quorum | step 24/24 | run.json --output quorum | $quorum
line quorum/metrics.jsonl "step":24,.*"participants":\[
forget quorum 24
0 4 | resumed | step 24/24 | run.json --output quorum --resume latest | $quorum
0 4 | of small differences | step 24/24 | run.json --output small | $quorum | sync.exchange=sparse
forget small 24
0 4 | resumed too | step 24/24 | run.json --output small --resume latest | $quorum | sync.exchange=sparse
line small/config.json "aggregate": "senders"
0 2 | of ranks with unequal data | step 24/24 | run.json --output unequal | sync.algorithm={"type":"diloco","period":8} | sync.exchange=sparse | data.partition={"type":"dirichlet"}
line unequal/config.json "aggregate": "ranks"
0 1 | on one rank | step 24/24 | run.json --output alone | sync.algorithm={"type":"diloco","period":4,"quorum":1} | deterministic=false
0 3 | into it and out of it | step 24/24 | run.json --output switched | $quorum | sync.verify=off | sync.switch=[{"step":8,"algorithm":"gossip"},{"step":12,"algorithm":{"type":"diloco","period":4,"quorum":1}}] | sync.topology.type=static-ring
)table");
}

TEST_CASE("algorithms: a scale of the rate is as good as a rate so many times as large") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.play(R"table(
0 2 | scaled | step 24/24 | run.json --output scaled | sync.algorithm=gossip | sync.topology.type=ring | sync.lr_scale=2
0 2 | larger | step 24/24 | run.json --output larger | sync.algorithm=gossip | sync.topology.type=ring | optimizer.lr=0.04
same scaled larger
)table");
}

#if __has_include(<zmq.h>)
TEST_CASE("algorithms: messages over ZeroMQ end in the bits of all others") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.play(R"table(
0 4 | others | step 24/24 | run.json --output others | sync.algorithm={"type":"gossip_diloco","period":4} | sync.topology.type=ring
0 4 | over ZeroMQ | step 24/24 | run.json --output zeromq | sync.algorithm={"type":"gossip_diloco","period":4} | sync.topology.type=ring | sync.transport=zeromq
same others zeromq
2 4 | a secret that is not there | secret.*/none/there.*No such file.*openssl rand | run.json --output out | sync.transport={"type":"zeromq","secret":"/none/there"}
2 4 | no interface | sync\.transport\.interface: .*none0 | run.json --output out | sync.transport={"type":"zeromq","interface":"none0"}
2 4 | no port | sync\.transport\.port | run.json --output out | sync.transport={"type":"zeromq","port":65536}
)table");
}
#endif

TEST_CASE("algorithms: ranks wait in their steps, and none works for longer than a step takes") {
  const Program program;
  program.write("run.json", algorithm_config());
  program.check(
      "nodes", 4, 0, "step 24/24", "run.json --output out",
      {R"(sync.algorithm={"type":"local_sgd","period":24,"gradients":"node","ranks_per_node":2})",
       "log_every=8"});
  int steps = 0;
  for (const nlohmann::json& line : program.metrics("out", "slowest_rank_ms")) {
    CAPTURE(line.dump());
    CHECK(line["wait_ms"] > 0.0);
    CHECK(line["fastest_rank_ms"] <= line["slowest_rank_ms"]);
    CHECK(line["slowest_rank_ms"] <= line["step_ms"]);
    steps += 8;
  }
  CHECK(steps == 24);
}

}  // namespace
}  // namespace starling
