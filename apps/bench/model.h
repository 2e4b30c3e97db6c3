#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/trainer/tasks/training_pass.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

namespace starling {

/// What a benchmark's options name; Error(kUsage) where a name is unknown. Images are image × image × 3; an empty stem is the model's own,
/// an "mlp" has two hidden layers of 512. An empty topology is the default one.
std::unique_ptr<Model> bench_model(const std::string& type, const std::string& stem, std::int64_t image, std::int64_t classes);
std::unique_ptr<Task> bench_task(std::int64_t image, std::int64_t classes);
std::unique_ptr<OptimizerRule> bench_rule(const std::string& type);
std::unique_ptr<Topology> bench_topology(const std::string& type, int ranks);

}  // namespace starling
