// Runs with sync.replica: the numbers of a run with fewer ranks in larger batches, going on, and
// what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "apps/data/loss_shares.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

/// The largest difference of two fp64 models, relative to numbers above 1.
double difference(const std::string& a, const std::string& b) {
  const SafetensorsFile one = read_safetensors(a + "/model.safetensors"),
                        other = read_safetensors(b + "/model.safetensors");
  REQUIRE(one.tensors.size() == other.tensors.size());
  double largest = 0.0;
  for (const auto& [name, tensor] : one.tensors) {
    if (tensor.dtype != DType::kFloat64) continue;
    const auto* const x = reinterpret_cast<const double*>(tensor.bytes.data());
    const auto* const y = reinterpret_cast<const double*>(other.tensors.at(name).bytes.data());
    for (std::int64_t i = 0; i < tensor.shape.elements(); ++i)
      largest = std::max(largest, std::abs(x[i] - y[i]) / std::max(1.0, std::abs(x[i])));
  }
  return largest;
}

void write_run(const Program& program) {
  program.write(
      "run.json",
      test::short_config(
          R"({"type": "mlp", "hidden": [24, 16]})",
          R"("batch_size": 12, "steps": 20, "precision": "fp64", "optimizer": {"type": "adamw", "lr": 0.003},
    "sync": {"topology": {"type": "one-peer-exp"}, "bucket_mb": 0.005}, "checkpoint": {"every_steps": 10, "keep": 9},)"));
}

}  // namespace

TEST_CASE("replica: a run in replicas has the numbers of one with a rank for each") {
  const Program program;
  write_run(program);
  const std::vector<Program::Arguments> cases{
      {},
      {"clip_norm=0.1"},
      {"clip_norm=0.1", "clip=bucket"},
      {"accumulate=2"},
      {"ema.decay=0.9"},
      {"lookahead.every=5"},
      {"optimizer.type=lamb"},
      {"optimizer.type=muon"},
      {"optimizer.type=adafactor"},
      {R"(optimizer.groups=[{"match": "bias", "lr_scale": 0.1}])"},
      {"sync.algorithm=allreduce", "optimizer.type=lars"},
      {R"(sync.algorithm={"type": "diloco", "period": 5})"},
      {R"(sync.algorithm={"type": "gossip_diloco", "period": 5})", "sync.exchange=int8"},
      {R"(sync.algorithm={"type": "diloco", "period": 5})", "sync.exchange=sparse"},
      {R"(sync.switch=[{"step": 7, "algorithm": "allreduce"}, {"step": 13, "algorithm": "choco"}])"},
      {R"(model={"type": "resnet20"})", "data.image_size=8", "sync.batch_norm=sync", "steps=3",
       "checkpoint.every_steps=0"}};
  int run = 0;
  for (const Program::Arguments& settings : cases) {
    for (const int ranks : {2, 3}) {
      if (ranks == 3 && ++run % 3 != 0) continue;
      CAPTURE(settings.empty() ? "" : settings.front());
      CAPTURE(ranks);
      program.play("remove one two");
      Program::Arguments whole = settings, parts = settings;
      whole.push_back("batch_size=" + std::to_string(12 * ranks));
      parts.push_back("sync.replica=" + std::to_string(ranks));
      program.check("ranks", 2, 0, "^done", "run.json --output one", whole);
      program.check("replicas", 2 * ranks, 0, "^done", "run.json --output two", parts);
      CHECK(difference("one", "two") < 1e-10);
    }
  }
}

TEST_CASE("replica: a run goes on with its bits, and with other replicas and numbers of ranks") {
  const Program program;
  write_run(program);
  program.play(R"table(
0 4 | two replicas | mlp: .* gossip over one-peer-exp, 2 replicas of 2 ranks | run.json --output whole | sync.replica=2 | ema.decay=0.9
copy whole half
forget half 20
copy half other
copy half ranks
copy half one
0 4 | from step 10 | ^done | --resume half
same whole half
2 4 | others are asked for | now says 4 for sync.replica, the checkpoint was made with 2; give the same, add --elastic, or | --resume other | sync.replica=4
0 4 | one replica | ^done | --resume other --elastic | sync.replica=4
2 3 | a rank less | sync.replica: is 2, and this host has 3 of 3 ranks; allowed: 1, 3, or a multiple of 2 | --resume whole --elastic
0 2 | a rank for each | ^done | --resume ranks --elastic | sync.replica=1 | batch_size=24
0 6 | more of them | ^done | --resume one --elastic | sync.replica=3
0 2 | back to ranks | ^done | --resume one --elastic | sync.replica=1 | steps=24
)table");
  CHECK(difference("whole", "ranks") < 1e-2);  // the optimizer's states are the mean of the ranks'
}

TEST_CASE("replica: auto chooses between replicas, and the choice is kept") {
  const Program program;
  write_run(program);
  program.play(R"table(
0 4 | a dry run | ^topology: auto | run.json --dry-run | sync.topology={"type":"auto"} | sync.replica=2
0 4 | measured | ^auto: .*predicted .* a step | run.json --output chosen | sync.topology={"type":"auto"} | sync.bucket_mb=auto | sync.replica=2
0 4 | one replica has nothing to choose | 1 replica of 4 ranks | run.json --output one | sync.topology={"type":"auto"} | sync.replica=4
)table");
  const nlohmann::json chosen = program.summary("chosen")["auto"];
  CHECK(chosen["network"]["ranks"] == 2);
  CHECK(chosen["network"]["replica"] == 2);
  CHECK(chosen["network"]["direct"] == false);
  const std::string algorithm = chosen["algorithm"], topology = chosen["topology"];
  program.check(
      "written down", 4, 0, "^done", "run.json --output written",
      {"sync.algorithm=" + algorithm,
       R"(sync.topology={"type": ")" + (algorithm == "gossip" ? topology : "base-2") + "\"}",
       "sync.bucket_mb=" + chosen["bucket_mb"].dump(), "sync.replica=2"});
  program.play(R"table(
same chosen written
forget chosen 20
0 4 | goes on with it | continuing after step 10 | run.json --output chosen --resume latest | sync.topology={"type":"auto"} | sync.bucket_mb=auto | sync.replica=2
same chosen written
)table");
}

TEST_CASE("replica: what does not go is refused by its key, a dry run tells the memory") {
  const Program program;
  write_run(program);
  program.play(R"table(
2 4 | not a divisor | sync.replica: is 3, and this host has 4 of 4 ranks; allowed: 1, 2, 4, or a multiple of 3 ranks on each host | sync.replica=3
2 4 | not whole | sync.replica: is 1.5, and this host has 4 of 4 ranks; allowed: 1, 2, 4$ | sync.replica=1.5
2 4 | no number | sync.replica: expected a number .*, or "host", found the string 'node' | sync.replica=node
2 4 | each at its own pace | sync.replica: is 2, but .* allowed: 1, or another algorithm | sync.replica=2 | sync.algorithm=async | deterministic=false
2 4 | a quorum | sync.replica: is 2, but DiLoCo with a quorum .* allowed: 1, or "quorum": 0 | sync.replica=2 | sync.algorithm={"type":"diloco","period":5,"quorum":2} | deterministic=false
2 4 | ranks that come and go | sync.replica: is host, but ranks that are lost or join .* here 4 | sync.replica=host | elastic={"survive":true}
0 4 | all of a host | 1 replica of 4 ranks | sync.replica=host | steps=1
)table",
               "run.json --output out");
  program.play(R"table(
0 4 | a dry run | ^memory of a rank \(of this host's 4\) with sync.replica 4: 2.4 MiB \(9.6 MiB\)$ | run.json --dry-run | sync.replica=2
0 4 | its bytes | ^exchanges: a rank sends 290.5 KiB to other replicas in a step, and reads 290.5 KiB of its own's gradients where they lie; 0 B leave a host, 2.3 MiB go inside it$ | run.json --dry-run | sync.replica=2
0 4 | and of the batch | ^of this host .* are free: batch_size fits up to [0-9]+$ | run.json --dry-run | sync.replica=2
0 4 | of one that fits by nothing | are free: batch_size fits up to [0-9]+; no other recompute or replica fits$ | run.json --dry-run | model.hidden=[30000, 200000]
0 1 | of one rank | memory of a rank: recompute none 8.7 MiB, cheap 8.7 MiB, block 7.5 MiB$ | run.json --dry-run | model={"type":"resnet20"} | data.image_size=8
)table");
}

TEST_CASE("replica: a loss is the mean over the counted targets of the replica's ranks") {
  // Samples 0 … 7 have so many; ranks 0 and 1 are a replica, 2 and 3 another
  const LossShares shares({3, 1, 0, 4, 2, 2, 5, 3}, 2, 1, {4, 4, 2},
                          [](auto, auto) { return false; });
  const auto order = [](int rank) { return std::vector<std::int64_t>{2 * rank, 2 * rank + 1}; };
  CHECK(shares.of_epoch(0, 1, 0, order).at(0) == doctest::Approx(4.0 / (8.0 / 2)));
  CHECK(shares.of_epoch(0, 1, 1, order).at(0) == doctest::Approx(4.0 / (8.0 / 2)));
  CHECK(shares.of_epoch(0, 1, 2, order).at(0) == doctest::Approx(4.0 / (12.0 / 2)));
  CHECK(shares.of_epoch(0, 1, 3, order).at(0) == doctest::Approx(8.0 / (12.0 / 2)));
}

}  // namespace starling
