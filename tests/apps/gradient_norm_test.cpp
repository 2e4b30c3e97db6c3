// The norm of gradients in the lines of metrics: of each rank's own, before they are clipped, by
// whatever rule and algorithm.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/checkpoint_file.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

constexpr double kRate = 0.25;

void write_run(const Program& program) {
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [16]})",
                                               R"("batch_size": 8, "steps": 3,
    "precision": "fp64", "optimizer": {"type": "sgd", "lr": 0.25},
    "checkpoint": {"every_steps": 1, "keep": 9},)"));
}

/// The line of a step.
nlohmann::json line(const Program& program, const std::string& folder, int step) {
  for (const nlohmann::json& line : program.metrics(folder, "loss")) {
    if (line["step"] == step) return line;
  }
  return {};
}

/// All parameters of a rank after so many steps.
std::vector<double> numbers(const std::string& folder, int step, int rank) {
  const CheckpointFile checkpoint(folder + "/checkpoints/step-" + std::to_string(step));
  std::vector<double> all;
  for (const auto& [name, tensor] : checkpoint.read(rank).tensors) {
    if (!name.starts_with("model.")) continue;
    std::vector<double> own(tensor.bytes.size() / sizeof(double));
    std::memcpy(own.data(), tensor.bytes.data(), tensor.bytes.size());
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace

// Plain SGD moves by lr times the gradient from where mixing has put it.
TEST_CASE("gradient norm: it is the length of the step, over the rate") {
  const Program program;
  write_run(program);
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const std::string folder = "all" + std::to_string(ranks);
    program.check("run", ranks, 0, "done", "run.json --output " + folder,
                  {"sync.algorithm=allreduce"});
    const nlohmann::json told = line(program, folder, 2);
    const double norm = distance(numbers(folder, 1, 0), numbers(folder, 2, 0)) / kRate;
    CHECK(told["grad_norm"].get<double>() == doctest::Approx(norm).epsilon(1e-9));
    CHECK(told["grad_norm_max"].get<double>() == doctest::Approx(norm).epsilon(1e-9));
  }
  program.check("gossip", 2, 0, "done", "run.json --output gossip",
                {"sync.topology.type=one-peer-exp", "sync.overlap=false"});
  std::vector<double> mean = numbers("gossip", 1, 0), other = numbers("gossip", 1, 1);
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (mean[i] + other[i]) / 2;
  const double first = distance(mean, numbers("gossip", 2, 0)) / kRate,
               second = distance(mean, numbers("gossip", 2, 1)) / kRate;
  const nlohmann::json told = line(program, "gossip", 2);
  CHECK(told["grad_norm"].get<double>() == doctest::Approx((first + second) / 2).epsilon(1e-9));
  CHECK(told["grad_norm_max"].get<double>() ==
        doctest::Approx(std::max(first, second)).epsilon(1e-9));
}

TEST_CASE("gradient norm: rules, groups, clipping and algorithms tell the same of the same step") {
  const Program program;
  write_run(program);
  const auto told = [&](int ranks, const Program::Arguments& settings) {
    program.check("run", ranks, 0, "done", "run.json --output run", settings);
    const nlohmann::json found = line(program, "run", 1);
    std::filesystem::remove_all("run");
    const double none = -1.0;
    return std::pair(found.value("grad_norm", none), found.value("grad_norm_max", none));
  };
  const double alone = told(1, {}).first;
  CHECK(alone > 0.0);
  for (const Program::Arguments& settings :
       std::vector<Program::Arguments>{{"optimizer.type=adamw"},
                                       {"optimizer.type=adafactor"},
                                       {"optimizer.type=lamb"},
                                       {"optimizer.type=lars"},
                                       {"optimizer.type=muon"},
                                       {"optimizer.groups=[{\"match\":\"bias\",\"lr_scale\":0.1}]"},
                                       {"sync.bucket_mb=0.001"},
                                       {"clip_norm=1e-3"},
                                       {"clip_norm=1e-3", "sync.bucket_mb=0.001", "clip=bucket"},
                                       {"threads=3"},
                                       {"log_every=1", "sync.update=after_backward"}}) {
    CAPTURE(settings.front());
    CHECK(told(1, settings).first == doctest::Approx(alone).epsilon(1e-9));
  }
  // All ranks begin with the same model, so that own gradients are those of any algorithm.
  const auto [mean, most] = told(2, {"sync.algorithm=gossip"});
  CHECK(most >= mean);
  for (const std::string algorithm :
       {"exact_diffusion", "qgm", "decentlam", "gradient_tracking", "push_sum", "low_precision"}) {
    CAPTURE(algorithm);
    const auto [of_mean, of_most] = told(2, {"sync.algorithm=" + algorithm});
    CHECK(of_mean == doctest::Approx(mean).epsilon(1e-9));
    CHECK(of_most == doctest::Approx(most).epsilon(1e-9));
  }
  const auto [reduced, largest] = told(2, {"sync.algorithm=allreduce"});
  CHECK(reduced <= mean);
  CHECK(largest == doctest::Approx(reduced).epsilon(1e-9));
}

}  // namespace starling
