// A run that has not come to its end is a model: whoever takes a run takes its newest checkpoint.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "apps/inference/checkpoint_file.h"
#include "apps/inference/inference.h"
#include "apps/inference/model_source.h"
#include "tests/apps/program.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::Program;

std::string error_of(const std::string& path) {
  return test::error_text(ExitCode::kUsage, [&] { (void)read_model(find_model(path).path); });
}

double number_of(const FileTensor& tensor, std::size_t i) {
  if (tensor.dtype == DType::kInt64) return 0.0;
  float value = 0.0F;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
  return static_cast<double>(value);
}

/// The largest difference of two models' numbers; infinity where their tensors differ.
double distance(const SafetensorsFile& a, const SafetensorsFile& b) {
  double most = 0.0;
  if (a.tensors.size() != b.tensors.size() || a.tensors.empty()) return INFINITY;
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.shape != tensor.shape) return INFINITY;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape.elements()); ++i)
      most = std::max(most, std::abs(number_of(tensor, i) - number_of(other->second, i)));
  }
  return most;
}

const std::string kNet =
    R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 3, "stride": 4}, {"type": "batch_norm"}, {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})";

TEST_CASE("stopped run: its newest whole checkpoint is the model, and by step the newest of all") {
  const Program program;
  program.write(
      "run.json",
      test::short_config(
          kNet,
          R"("batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.2, "momentum": 0.9}, "sync": {"algorithm": "gossip", "topology": {"type": "static-ring"}},
    "steps": 8, "checkpoint": {"every_steps": 4, "keep": 3},)"));
  program.play(R"table(
0 3 | to step 8 | step 8/8 | run.json --output run
copy run/model.safetensors eight.safetensors
0 3 | to step 12 | step 12/12 | run.json --resume run | steps=12
copy run/model.safetensors twelve.safetensors
)table");
  const SafetensorsFile twelve = read_safetensors("twelve.safetensors"),
                        eight = read_safetensors("eight.safetensors");
  REQUIRE(distance(twelve, eight) > 1e-3);
  SUBCASE("the mean of the ranks") {
    std::filesystem::remove("run/model.safetensors");
    const ModelSource found = find_model("run");
    CHECK(found.path == "run/checkpoints/step-12");
    CHECK(found.told == "run: the checkpoint of step 12, the mean of its 3 ranks");
    const SafetensorsFile mean = read_model(found.path);
    CHECK(distance(mean, twelve) < 1e-6);
    const CheckpointFile checkpoint("run/checkpoints/step-12");
    double sum = 0.0;
    for (int rank = 0; rank < 3; ++rank)
      sum += number_of(checkpoint.read(rank).tensors.at("model.4.weight"), 5);
    CHECK(number_of(mean.tensors.at("4.weight"), 5) ==
          static_cast<double>(static_cast<float>(sum / 3.0)));
    CHECK(distance(read_model(find_model("run/checkpoints/step-8").path), eight) < 1e-6);
    // All that uses a model takes it, with its classes and its way to make inputs of pictures.
    const auto model = load_model("run", {.threads = 1}),
               whole = load_model("twelve.safetensors", {.threads = 1});
    CHECK(model->classes() == whole->classes());
    const std::vector<float> batch(static_cast<std::size_t>(model->input().elements()), 0.5F);
    CHECK(model->logits(batch)[3] == doctest::Approx(whole->logits(batch)[3]).epsilon(1e-4));
    program.play(R"table(
0 1 | a test of it | "samples":256 | --evaluate run
0 1 | said in a line | ^run: the checkpoint of step 12, the mean of its 3 ranks$ | --evaluate run
0 1 | of an older one | the checkpoint of step 4, the mean of its 3 ranks | --evaluate run/checkpoints/step-4
0 1 | values to begin with | ^init: run: the checkpoint of step 12 | run.json --output next | init=run | steps=1 | optimizer.lr=1e-30
0 1 | and of a model | step 1/1 | run.json --output whole | init=twelve.safetensors | steps=1 | optimizer.lr=1e-30
2 1 | one rank's part | rank-0\.safetensors: is one rank's part of a checkpoint.*give the checkpoint's folder | --evaluate run/checkpoints/step-8/rank-0.safetensors
)table");
    SafetensorsFile next = read_safetensors("next/model.safetensors"),
                    direct = read_safetensors("whole/model.safetensors");
    CHECK(distance(next, direct) < 1e-6);
  }
  SUBCASE("one that is taken away once it was found is still the model, as a whole") {
    std::filesystem::remove("run/model.safetensors");
    for (const char* gone : {"run/checkpoints/step-12/DONE", "run/checkpoints/step-12"}) {
      INFO(gone);
      const ModelSource found = find_model("run");
      REQUIRE(found.path == "run/checkpoints/step-12");
      std::filesystem::rename(gone, "kept");
      CHECK(distance(read_model(found.path), twelve) < 1e-6);
      const SafetensorsFile said = read_model_metadata(found.path);
      CHECK(said.tensors.empty());
      CHECK(said.metadata.count("starling.config") == 1);
      const SafetensorsFile part =
          read_model(found.path, [](const std::string& name) { return name != "4.weight"; });
      CHECK(part.tensors.size() == 1);
      // Whoever looks again takes what is there now, and of the one that has gone no word
      CHECK(find_model("run").told == "run: the checkpoint of step 8, the mean of its 3 ranks");
      CHECK(distance(read_model("run/checkpoints/step-8"), eight) < 1e-6);
      CHECK(test::matches(error_of("run/checkpoints/step-12"), "step-12"));
      std::filesystem::rename("kept", gone);
    }
  }
  SUBCASE("the folder of checkpoints is none") {
    CHECK(test::matches(error_of("run/checkpoints"),
                        "run/checkpoints is a folder of checkpoints; give the run, or one of "
                        "these: step-12, step-8, step-4$"));
  }
  SUBCASE("a newer checkpoint comes before an older model, whichever file is younger") {
    program.play("copy eight.safetensors run/model.safetensors");
    CHECK(find_model("run").path == "run/checkpoints/step-12");
    CHECK(test::matches(find_model("run").told, "model\\.safetensors is of step 8"));
    program.play("copy twelve.safetensors run/model.safetensors");
    CHECK(find_model("run").path == "run/model.safetensors");
    CHECK(find_model("run").told.empty());
  }
  SUBCASE("a damaged one is left for the one before, and said") {
    program.play("flip run/checkpoints/step-12/rank-0.safetensors model.4.weight\nforget run");
    ModelSource found = find_model("run");
    CHECK(found.path == "run/checkpoints/step-8");
    CHECK(test::matches(found.told, "step-12/rank-0.safetensors.*model\\.4\\.weight.*step 8"));
    CHECK(distance(read_model(found.path), eight) < 1e-6);
    program.play("copy eight.safetensors run/model.safetensors");
    found = find_model("run");
    CHECK(found.path == "run/model.safetensors");
    CHECK(
        test::matches(found.told, "model\\.4\\.weight.*taking run/model\\.safetensors, of step 8"));
    program.play("forget run 4\ncut run/checkpoints/step-8/rank-1.safetensors 900");
    CHECK(test::matches(error_of("run"), "step-12.*model\\.4\\.weight.*no other checkpoint"));
    program.play("remove run/checkpoints/step-12/DONE run/checkpoints/step-8");
    CHECK(
        test::matches(error_of("run"), "no complete checkpoint: there are .*checkpoints/step-12"));
    program.play("folder empty");
    CHECK(test::matches(error_of("empty"), "empty has no model.safetensors.*it is empty"));
  }
}

TEST_CASE("stopped run: what the mean goes by is the end's, whatever trained") {
  const Program program;
  program.write("run.json",
                test::short_config(
                    kNet, R"("batch_size": 16, "steps": 6, "checkpoint": {"every_steps": 6},)"));
  for (const std::string settings : {R"(optimizer={"type":"schedule_free_adamw","lr":0.05})",
                                     "sync.algorithm=push_sum | sync.topology.type=directed-exp",
                                     "sync.algorithm=allreduce", "sync.batch_norm=recalibrate"}) {
    INFO(settings);
    program.play("remove run\n0 3 | to the end | step 6/6 | run.json --output run | " + settings);
    const SafetensorsFile end = read_safetensors("run/model.safetensors");
    std::filesystem::remove("run/model.safetensors");
    const ModelSource found = find_model("run");
    SafetensorsFile mean = read_model(found.path);
    if (test::matches(settings, "recalibrate")) {
      CHECK(test::matches(found.told, "statistics not recalibrated"));
      for (const char* name : {"1.running_mean", "1.running_var"})
        mean.tensors.at(name) = end.tensors.at(name);
    }
    CHECK(distance(mean, end) < 1e-6);
  }
}

}  // namespace
}  // namespace starling
