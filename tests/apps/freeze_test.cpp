// Parameters that stay, and their norms' statistics.
#include <doctest/doctest.h>

#include <string>

#include "core/safetensors.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

}  // namespace

TEST_CASE("freeze: frozen parameters and their norms' statistics keep every bit") {
  const Program program;
  program.write("run.json", R"({
    "data": {"type": "synthetic", "limit": 64, "test_limit": 16, "image_size": 8},
    "model": {"type": "sequential", "layers": [
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "flatten"}, {"type": "linear", "out_features": 10}]},
    "batch_size": 4, "steps": 6, "threads": 1, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "log_every": 1, "tensorboard": false, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_steps": 3}, "sync": {"transport": "mpi"}})");
  program.play(R"table(
0 2 | something to begin with | done | run.json --output first
let frozen = init=first/model.safetensors | optimizer.freeze=["^0\\.", "^1\\."] | seed=5
0 2 | a part of it stays | done | run.json --output tuned | $frozen
0 2 | stopped | done | run.json --output part | $frozen | steps=3
0 2 | and resumed | continuing after step 3 | run.json --output part --resume latest | $frozen
same tuned part
0 2 | statistics measured anew | done | run.json --output recalibrated | $frozen | sync.batch_norm=recalibrate | sync.recalibrate_batches=3
0 2 | statistics of all ranks | done | run.json --output synced | $frozen | sync.batch_norm=sync | sync.algorithm=allreduce
0 2 | the norm alone | done | run.json --output norm | init=first/model.safetensors | optimizer.freeze=["^4\\."]
0 1 | with right gradients | gradients agree with central differences | run.json --check-gradients | $frozen
2 1 | a name that is not there | optimizer\.freeze: 'bn1' is in the name of no parameter; names are 0\.weight, …, 7\.bias | run.json --dry-run | optimizer.freeze=["bn1"]
2 1 | no regular expression | optimizer\.freeze: '\(' is no regular expression | run.json --dry-run | optimizer.freeze=["("]
2 1 | all of it | no trainable parameter takes part in the loss, so there is nothing to train | run.json --dry-run | optimizer.freeze=["."]
2 2 | other ones at a resume | for optimizer.freeze, the checkpoint was made with | run.json --output part --resume latest | init=first/model.safetensors | optimizer.freeze=["^0\\."] | seed=5
)table");
  const SafetensorsFile first = read_safetensors("first/model.safetensors");
  const auto stays = [&](const std::string& run, const std::string& frozen) {
    const SafetensorsFile model = read_safetensors(run + "/model.safetensors");
    for (const auto& entry : model.tensors) {
      const std::string& name = entry.first;
      CAPTURE(run);
      CAPTURE(name);
      const bool same = entry.second.bytes == first.tensors.at(name).bytes;
      CHECK(same == (frozen.find(name[0]) != std::string::npos));
    }
  };
  stays("tuned", "01");
  stays("recalibrated", "01");
  stays("synced", "01");
  stays("norm", "4");
}

}  // namespace starling
