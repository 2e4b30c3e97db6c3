#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/training/config/plugins.h"
#include "apps/training/state/checkpoint.h"
#include "apps/training/training_run.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/safetensors.h"
#include "kernels/cuda/runtime/runtime.h"
#include "layers/layer.h"
#include "tests/cuda/run_config.h"
#include "tests/support/folder.h"

// Whole runs of the trainer with and without graphs, to be compared bit by bit.
namespace starling::tests {

/// A rank's run, and what it left.
struct GraphOutcome {
  /// Tensors of its last checkpoint: parameters, states of the optimizer, buffers
  std::map<std::string, FileTensor> tensors;
  std::vector<double> losses;  ///< rank 0: a step each
  std::string why_not;
  std::int64_t warm_up = 0;
  std::size_t graphs = 0;
  LossScaleState scale;
  std::uint64_t launches = 0;  ///< of graphs, by all ranks, while it ran
};

/// One rank's run. `prepare` may change the config's objects; `resume_step` > 0 goes on from the
/// folder's checkpoint.
struct GraphJob {
  nlohmann::json config;
  RankLayout site = {};
  std::function<void(TrainConfig&)> prepare = {};
  std::int64_t resume_step = 0;
};

inline GraphOutcome run_graph_job(const GraphJob& job, Backend& backend, Transport& transport,
                                  const std::string& folder) {
  TrainConfig config = read_gpu_config(job.config, job.site);
  if (job.prepare) job.prepare(config);
  const ShapeTrace trace = trace_shapes(config);
  GraphOutcome outcome;
  {
    Trainer trainer(config, job.site, trace, backend, transport);
    const CheckpointFolder checkpoints(folder);
    if (job.resume_step > 0) {
      const std::string source = checkpoints.rank_file(job.resume_step, transport.rank());
      trainer.resume(checkpoints.read(job.resume_step, transport.rank()), source);
    } else {
      trainer.initialise();
    }
    const ExitCode code = TrainingRun(trainer, folder).run();
    CHECK(code == ExitCode::kOk);
    const std::int64_t steps = run_length(config, job.site).total_steps;
    outcome.tensors = checkpoints.read(steps, transport.rank()).tensors;
    outcome.why_not = trainer.graphs().why_not();
    outcome.warm_up = trainer.graphs().warm_up_steps();
    outcome.graphs = trainer.graphs().graphs();
    if (trainer.loss_scaler()) outcome.scale = trainer.loss_scaler()->settle();
  }
  config.model.reset();
  return outcome;
}

inline std::vector<double> losses_in(const test::Folder& folder) {
  std::vector<double> losses;
  std::istringstream stream(folder.read("metrics.jsonl"));
  for (std::string line; std::getline(stream, line);) {
    const nlohmann::json fields = nlohmann::json::parse(line);
    if (fields.contains("loss")) losses.push_back(fields["loss"].get<double>());
  }
  return losses;
}

/// The job on one rank.
inline GraphOutcome run_alone(const GraphJob& job, Backend& backend,
                              const test::Folder& folder = {}) {
  register_builtins();
  const auto transport = make_single_transport();
  const std::uint64_t before = cuda::runtime_counters().graph_launches;
  GraphOutcome outcome = run_graph_job(job, backend, *transport, folder / ".");
  outcome.launches = cuda::runtime_counters().graph_launches - before;
  outcome.losses = losses_in(folder);
  return outcome;
}

/// The config with a layer of the test's own at this place, whose type gets this name.
template <class Type>
nlohmann::json with_layer(nlohmann::json config, const char* name, int place) {
  static const bool added = [&] {
    register_builtins();
    layers().add(name,
                 [](ConfigSection&) -> std::unique_ptr<Layer> { return std::make_unique<Type>(); });
    return true;
  }();
  (void)added;
  auto& list = config["model"]["layers"];
  list.insert(list.begin() + place, nlohmann::json{{"type", name}});
  return config;
}

/// The names of tensors whose bits differ; "" where none do.
inline std::string differences(const GraphOutcome& found, const GraphOutcome& wanted) {
  std::string names;
  if (found.tensors.size() != wanted.tensors.size() || wanted.tensors.empty())
    names = "numbers of tensors ";
  for (const auto& [name, tensor] : wanted.tensors) {
    const auto it = found.tensors.find(name);
    if (it == found.tensors.end() || it->second.bytes != tensor.bytes) names += name + " ";
  }
  if (found.losses != wanted.losses) names += "losses";
  return names;
}

}  // namespace starling::tests
