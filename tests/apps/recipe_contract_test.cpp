// What holds for every recipe: tests and checkpoints on the way change no bit, a run that goes on
// comes to the bits of one that did not stop, and a plan counts what is kept. Each is a row.
#include <doctest/doctest.h>

#include <string>

#include "tests/apps/program.h"
#include "tests/support/rows.h"

namespace starling {
namespace {

using test::Program;

/// The part of the memory that a plan names, and the settings.
const char* const kRecipes = R"table(
moving averages | ema={"decay":0.5,"every":2}
moving averages | ema={"decay":0.5} | lookahead={"every":2,"decay":0.6} | clip_norm=1
moving averages | ema={"decay":0.5} | lookahead={"every":2,"decay":0.6} | precision=auto
cached samples | data.cache=memory | data.threads=2 | data.sampler=class_balanced
 | sync.algorithm={"type":"gossip","global_above":0.001,"check_every":3,"interval":2}
 | sync.algorithm=push_sum | sync.topology.type=directed-exp
algorithm state | sync.algorithm=gradient_tracking | sync.topology.type=one-peer-exp
algorithm state | sync.exchange=int4 | sync.algorithm={"type":"diloco","period":6,"fragments":2,"delay":2,"error_feedback":true}
algorithm state | sync.exchange=sparse | sync.algorithm={"type":"diloco","period":4}
algorithm state | sync.algorithm={"type":"local_sgd","period":7,"delay":3,"states":"average"}
algorithm state | sync.algorithm={"type":"slowmo","period":5,"inner":"gossip"}
algorithm state | sync.exchange=int8 | sync.algorithm={"type":"gossip","error_feedback":true,"consensus_step":0.7,"block":32}
algorithm state | sync.topology.type=static-ring | sync.algorithm={"type":"choco","block":32,"consensus_step":0.5}
algorithm state | sync.topology.type=static-ring | sync.algorithm={"type":"low_precision","interval":2}
 | sync.algorithm=bytegrad
algorithm state | optimizer={"type":"adamw"} | sync.algorithm={"type":"qadam","warmup":6,"error_feedback":true}
let free = optimizer={"type":"schedule_free_adamw","lr":0.02,"weight_decay":0.1,"warmup_steps":3}
optimizer state | $free | accumulate=2 | clip_norm=1.0
optimizer state | $free | optimizer.groups=[{"match":"bias","lr_scale":0.1,"weight_decay":0}]
optimizer state | $free | sync.algorithm={"type":"gossip","mix_states":1}
optimizer state | $free | sync.algorithm=allreduce | sync.switch=[{"step":3,"algorithm":"gossip"}]
optimizer state | $free | sync.algorithm={"type":"local_sgd","period":3,"states":"reset"}
optimizer state | optimizer={"type":"adafactor","groups":[{"match":"bias","lr_scale":0.5}]}
let muon = optimizer={"type":"muon","lr":0.02,"groups":[{"match":"^3","orthogonal":false}]}
algorithm state | $muon | sync.algorithm={"type":"diloco","period":7,"delay":3}
optimizer state | $muon | sync.algorithm={"type":"diloco","period":7,"states":"reset"}
algorithm state | $muon | sync.topology.type=one-peer-exp | sync.algorithm={"type":"gossip_diloco","period":6,"fragments":2}
optimizer state | $muon | sync.topology.type=one-peer-exp | sync.algorithm={"type":"gossip_diloco","period":7,"states":"reset"}
algorithm state | $muon | sync.algorithm={"type":"local_sgd","period":6,"start":5,"delay":3,"states":"reset"}
optimizer state | optimizer={"type":"lars"}
optimizer state | optimizer={"type":"lamb"}
optimizer state | optimizer={"type":"accum_adamw","accum_iter":3} | schedule={"type":"cosine"}
optimizer state | optimizer={"type":"sgd","lr":0.02,"momentum":0.9,"groups":[{"match":"bias","until_epoch":0.6}]}
algorithm state | sync.topology.type=one-peer-exp | sync.algorithm=gradient_tracking | sync.switch=[{"step":7,"algorithm":{"type":"diloco","period":4,"delay":2}},{"step":20,"algorithm":"gossip","topology":{"type":"ring"}}]
algorithm state | sync.algorithm=allreduce | sync.exchange=int8 | sync.switch=[{"step":7,"algorithm":{"type":"gossip","error_feedback":true}},{"step":18,"algorithm":"choco","topology":{"type":"static-ring"}}]
)table";

}  // namespace

TEST_CASE(
    "recipes: tests, checkpoints and a resume change no bit, and a plan counts what is kept") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 16, "steps": 24,
    "optimizer": {"type": "sgd", "lr": 0.02, "momentum": 0.9}, "sync": {"bucket_mb": 0.001},)"));
  std::string story;
  for (const std::string& row : test::lines_of(kRecipes)) {
    if (row.empty() || row.starts_with("let ")) {
      story += row + "\n";
      continue;
    }
    const std::size_t end = row.find(" | ");
    const std::string settings = " | sync.topology.type=ring" + row.substr(end),
                      often = settings + " | evaluate.every_steps=3 | checkpoint.every_steps=5\n";
    // One that nothing interrupts; one that is tested and saved all the time; and that one resumed
    // from step 20, in the middle of an epoch.
    story += "0 4 | a plan | " + row.substr(0, end) + " | run.json --dry-run" + settings +
             "\n0 4 | a run | step 24/24 | run.json --output straight" + settings +
             " | checkpoint.every_epochs=0\n" +
             "0 4 | tested and saved | step 24/24 | run.json --output often" + often +
             "same straight often\nforget often 24\n"
             "0 4 | resumed | continuing after step 20 | run.json --output often --resume latest" +
             often + "same straight often\nremove straight often\n";
  }
  program.play(story);
}

}  // namespace starling
