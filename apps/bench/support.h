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

// What benchmarks share.
namespace starling {

/// The model that a benchmark's options name; Error(kUsage) where a name is unknown. Images are
/// image × image × 3; an empty stem is the model's own, an "mlp" has two hidden layers of 512. An
/// empty topology is the default one.
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

/// A tensor with numbers in a repeating pattern from -0.5 to 0.46, whose upload costs less than
/// random ones'; one of whole numbers is left as it is.
Tensor patterned(Backend& backend, const Shape& shape, DType dtype);

/// Median seconds of calls that take turns with others: add() measures one more time, over as many
/// calls as last a few milliseconds, so that launches and the wait at the end count for nothing.
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

/// How often the calling thread has asked the heap for memory (operator new) since it began.
std::uint64_t heap_requests();

}  // namespace starling
