// What a run that goes on may have otherwise, what a dry run says of going on, and what the best
// checkpoint goes by.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/training/schedules/run_length.h"
#include "apps/training/state/elastic.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

/// run.json: a small net in batches of 16, with more keys.
void write_small_run(const Program& program, const std::string& keys) {
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [8]})",
                                               R"("batch_size": 16, )" + keys));
}

}  // namespace

TEST_CASE("changed resume: schedule, decay and batch may be others, told in a line each") {
  const Program program;
  program.write(
      "run.json",
      R"({"model": {"type": "mlp", "hidden": [8]}, "data": {"type": "synthetic", "limit": 384, "test_limit": 32, "image_size": 8},
    "batch_size": 16, "epochs": 2, "optimizer": {"type": "sgd", "lr": 1e-30}, "sync": {"topology": {"type": "ring"}},
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_steps": 4, "keep": 9}, "log_every": 1, "threads": 1, "tensorboard": false})");
  program.play(R"table(
0 2 | two epochs of 12 updates | step 24/24 | run.json --output whole
copy whole half
forget half 8 12 16 20 24
copy half other
copy half twice
0 2 | in larger batches | ^changed since the checkpoint: batch_size 16 → 32$ | --resume half | batch_size=32
0 2 | which is reckoned | step 14/14 | run.json --output plain | batch_size=32 | epochs=2.333333333333333
0 2 | another schedule and decay | ^changed since the checkpoint: schedule\.type "constant" → "cosine"$ | --resume other | schedule={"type":"cosine","warmup_steps":2} | optimizer.weight_decay=0.25
line other/config.json "weight_decay": 0.25
2 2 | another rule is not | the config now says "adam" for optimizer.type | --resume other | optimizer={"type":"adam"}
2 2 | nor another model | the config now says .* for model.hidden | --resume other | model.hidden=[9]
0 2 | in smaller ones, to step 10 | from step 4 on batch_size 8 in place of 16, 16 samples an update in place of 32, 24 updates an epoch | --resume twice | batch_size=8 | steps=10
0 2 | and in others again | from step 10 on batch_size 16 in place of 8 | --resume twice | batch_size=16 | steps=18
)table");
  // The rates of 0 keep the model, so that each sample's loss is the same whenever it comes: all
  // samples' sum says that each has come once an epoch, in batches of whatever size.
  const auto sum_of = [&](const std::string& folder, std::int64_t first, std::int64_t last,
                          double samples) {
    double sum = 0.0;
    for (const nlohmann::json& line : program.metrics(folder, "loss")) {
      const std::int64_t step = line["step"];
      if (step >= first && step <= last) sum += samples * line["loss"].get<double>();
    }
    return sum;
  };
  const double epoch = sum_of("whole", 1, 12, 32);
  CHECK(sum_of("whole", 13, 24, 32) == doctest::Approx(epoch).epsilon(1e-6));
  // 4 updates of 32 samples and 4 of 64; then 6 of 64
  CHECK(sum_of("half", 1, 4, 32) + sum_of("half", 5, 8, 64) ==
        doctest::Approx(epoch).epsilon(1e-6));
  CHECK(sum_of("half", 9, 14, 64) == doctest::Approx(epoch).epsilon(1e-6));
  CHECK(program.metrics("half", "loss").size() == 14);
  // 128 samples, 6·16 = 96, and the other 160 in 5 updates of 32
  CHECK(sum_of("twice", 1, 4, 32) + sum_of("twice", 5, 10, 16) + sum_of("twice", 11, 15, 32) ==
        doctest::Approx(epoch).epsilon(1e-6));
  CHECK_FALSE(program.summary("half").contains("elastic"));
}

TEST_CASE("changed resume: each rank's state goes on in batches of another size, as in others") {
  const Program program;
  write_small_run(program, R"("steps": 8, "checkpoint": {"every_steps": 4, "keep": 9},
    "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9}, "sync": {"algorithm": {"type": "gradient_tracking"}, "topology": {"type": "static-ring"}},)");
  // Ranks that hold different numbers would be made one by an elastic resume; here they are not.
  program.play(R"table(
0 3 | a run | step 8/8 | run.json --output run
forget run 8
copy run elastic
0 3 | goes on in larger batches | from step 4 on batch_size 32 in place of 16 | run.json --resume run | batch_size=32
0 3 | and is saved and resumed in them | step 8/8 | run.json --output again --resume latest | batch_size=32
forget run 8
0 3 | to the same | continuing after step 4 | run.json --resume run | batch_size=32
)table");
  const auto lines = program.metrics("run", "consensus_distance");
  REQUIRE_FALSE(lines.empty());
  CHECK(lines.back()["consensus_distance"].get<double>() > 1e-4);
}

TEST_CASE("changed resume: an explicit batch is what other ranks keep from there on") {
  // 4 ranks of 32 until step 6, then of 64; 2 ranks keep 256 samples an update, at the same rate.
  std::vector<Stretch> stretches = continued({{0, 4, 32}}, 6, 4, {}, 64);
  CHECK(stretches.back() == Stretch{6, 4, 64, 256});
  stretches = continued(std::move(stretches), 9, 2, {});
  CHECK(stretches.back() == Stretch{9, 2, 128, 256});
  const RunLength length(stretches, 4096, 1, 0.0, 100);
  CHECK(length.batch_ratio(5) == 1.0);
  CHECK(length.batch_ratio(6) == 1.0);
  CHECK(length.batch_ratio(9) == 1.0);
  // A stretch in which nobody took a step leaves nothing behind.
  CHECK(continued({{0, 4, 32}, {6, 2, 64}}, 6, 2, {}, 16) ==
        std::vector<Stretch>{{0, 4, 32}, {6, 2, 16, 32}});
}

TEST_CASE("changed resume: a dry run says what training would, and changes nothing") {
  const Program program;
  write_small_run(program, R"("steps": 8, "checkpoint": {"every_steps": 4, "keep": 9},)");
  program.play(R"table(
0 2 | a run | step 8/8 | run.json --output run
0 2 | that could go on | in all | --resume run --dry-run | steps=12
2 1 | not on other ranks | made by 2 ranks, this run has 1 | --resume run --dry-run
0 1 | but with --elastic | in all | --resume run --elastic --dry-run
2 2 | nor as another model | for model.hidden | --resume run --dry-run | model.hidden=[9]
2 2 | nor with another rule | for optimizer.type | run.json --output run --resume latest --dry-run | optimizer.type=adam
0 2 | latest of none begins | in all | run.json --output none --resume latest --dry-run
lacks none
0 1 | values to begin with | in all | run.json --dry-run | init=run
2 1 | of another shape | tensor 1.weight has shape .*"skip": \["1\.\*" | run.json --dry-run | init=run | model.hidden=[9]
2 1 | that are not there | no\.safetensors: cannot be read: No such file or directory | run.json --dry-run | init=no.safetensors
flip run/checkpoints/step-8/rank-0.safetensors model.1.weight
0 2 | a damaged checkpoint is left for the one before | going on from step 4 | --resume run --dry-run
has run/checkpoints/step-8
remove run/checkpoints/step-4
2 2 | or there is none | step-8/rank-0\.safetensors.*model\.1\.weight | --resume run --dry-run
has run/checkpoints/step-8
)table");
}

TEST_CASE("changed resume: a folder that is not there is named, and the nearest beside it") {
  const Program program;
  write_small_run(program, R"("steps": 4,)");
  program.play(R"table(
0 1 | a run | done | run.json --output runs/first
2 1 | misspelt | there is no runs/frist; did you mean 'first'\? | --resume runs/frist
2 1 | with a config too | there is no runs/frist; did you mean 'first'\? | run.json --resume runs/frist
2 1 | by latest, without a config | there is no runs/frist.*or a config | --resume latest --output runs/frist
2 1 | a checkpoint's folder | step-4 is a checkpoint's folder; needed: that of its run, --resume runs/first | --resume runs/first/checkpoints/step-4
2 1 | a model | runs/frist: cannot be read: No such file or directory; did you mean 'first'\? | --evaluate runs/frist
2 1 | a config | rnu.json: cannot be read: No such file or directory; did you mean 'run.json'\? | rnu.json
2 1 | a section's name for an object | sync: expected an object, e\.g\. \{"algorithm": "\.\.\."\}, found the string "gossip" | run.json --dry-run | sync=gossip
2 1 | of a section with types | model: expected an object, e\.g\. \{"type": "\.\.\."\}, found the string "mlp" | run.json --dry-run | model=mlp
lacks runs/frist
)table");
}

TEST_CASE("changed resume: a loss that is no number names data of absurd size") {
  const Program program;
  std::string table = "a,y\n";
  for (int i = 0; i < 60; ++i)
    table += std::to_string(i % 7) + "," + (i % 2 == 0 ? "1e20" : "-1e20") + "\n";
  program.write("t.csv", table);
  program.write(
      "run.json",
      R"({"data": {"type": "csv", "path": "t.csv", "target": "y"}, "model": {"type": "mlp", "hidden": [8]}, "task": {"type": "regression"},
    "optimizer": {"type": "sgd", "lr": 0.1}, "batch_size": 6, "epochs": 3, "threads": 1, "tensorboard": false})");
  program.check("targets", 1, 4,
                "the data has numbers up to 1e\\+20 \\(target\\): scale them first, or use a",
                "run.json --output run");
}

TEST_CASE("changed resume: the best checkpoint is by the metric that is named") {
  const Program program;
  write_small_run(
      program,
      R"("steps": 12, "optimizer": {"type": "sgd", "lr": 0.3}, "checkpoint": {"every_steps": 4, "keep": 1},)");
  program.play(R"table(
let tests = evaluate.every_steps=1
0 2 | the least | done | run.json --output least | $tests | checkpoint.best={"metric": "test_macro_f1", "mode": "min"}
0 2 | the smallest loss | done | run.json --output loss | $tests | checkpoint.best={"metric": "test_loss"}
0 2 | as ever | done | run.json --output ever | $tests | checkpoint.best=true
line ever/config.json "best": true
has ever/checkpoints/best/model.safetensors ever/checkpoints/best/rank-1.safetensors
lacks ever/checkpoints/best.new ever/checkpoints/best.old
copy ever longer
0 2 | what was best stays so unless it is beaten | done | --resume longer | steps=18
2 1 | a metric that no test has | checkpoint\.best\.metric: .*did you mean 'test_loss' | run.json --output out | checkpoint.best={"metric": "test_los"}
2 1 | a key that is none | checkpoint\.best\.metrik | run.json --output out | checkpoint.best={"metrik": "test_loss"}
0 2 | by another one from here on | done | --resume loss | steps=14 | checkpoint.best={"metric": "test_accuracy"}
)table");
  const auto best_of = [&](const std::string& folder, const char* key, bool most) {
    const auto lines = program.metrics(folder, key);
    const auto less = [&](const auto& a, const auto& b) {
      return a[key].template get<double>() < b[key].template get<double>();
    };
    return *(most ? std::max_element(lines.begin(), lines.end(), less)
                  : std::min_element(lines.begin(), lines.end(), less));
  };
  const auto kept = [&](const std::string& folder) {
    return nlohmann::json::parse(program.read(folder + "/checkpoints/best/DONE"));
  };
  const nlohmann::json least = best_of("least", "test_macro_f1", false);
  CHECK(kept("least")["step"] == least["step"]);
  CHECK(kept("least")["value"] == least["test_macro_f1"]);
  CHECK(kept("least")["metric"] == "test_macro_f1");
  for (const std::string run : {"ever", "longer"}) {
    CAPTURE(run);
    const nlohmann::json best = best_of(run, "test_accuracy", true), summary = program.summary(run);
    CHECK(kept(run)["step"] == best["step"]);
    CHECK(kept(run)["value"] == best["test_accuracy"]);
    CHECK(summary["best"] ==
          nlohmann::json{{"step", best["step"]}, {"test_accuracy", best["test_accuracy"]}});
  }
  for (const std::string rank : {"0", "1"})
    CHECK(read_safetensors("ever/checkpoints/best/rank-" + rank + ".safetensors")
              .metadata.at("step") == std::to_string(kept("ever")["step"].get<int>()));
  CHECK(kept("loss")["metric"] == "test_accuracy");
  CHECK(kept("loss")["step"].get<int>() > 12);
}

}  // namespace starling
