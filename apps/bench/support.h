#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/training/tasks/training_pass.h"
#include "core/backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "topology/topology.h"

// Shared by the benchmarks.
namespace starling {

/// The model of a benchmark's options; Error(kUsage) for an unknown name. Images are image × image
/// × 3; an empty stem means the model's default; an "mlp" has two hidden layers of 512; an empty
/// topology is the default one.
std::unique_ptr<Model> bench_model(const ModelBench& settings);
std::unique_ptr<Task> bench_task(const ModelBench& settings);
std::unique_ptr<OptimizerRule> bench_rule(const std::string& type);
std::unique_ptr<Topology> bench_topology(const std::string& type, int ranks);

inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A tensor with a repeating pattern of numbers from -0.5 to 0.46, cheaper to make than random
/// ones; integers are left as they are.
Tensor patterned(Backend& backend, const Shape& shape, DType dtype);

/// The median time of calls that alternate with other work. add() measures once more, over enough
/// calls to last a few milliseconds, so that launch overhead and the final wait are negligible.
class Timing {
 public:
  Timing(Backend& backend, std::function<void()> work);
  void add();
  double seconds() const { return median(seconds_); }

 private:
  double seconds_each(int calls) const;

  Backend& backend_;
  std::function<void()> work_;
  int calls_ = 1;
  std::vector<double> seconds_;
};

/// The number of calls of operator new by the calling thread since it began.
std::uint64_t heap_requests();

}  // namespace starling
