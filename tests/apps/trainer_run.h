#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/training/evaluation.h"
#include "apps/training/trainer.h"
#include "comm/transport.h"
#include "core/operations/pointwise.h"
#include "core/safetensors.h"
#include "kernels/open_backend.h"

namespace starling::test {

/// A tensor's numbers; it is of this type.
template <class T = double>
std::vector<T> numbers_in(const SafetensorsFile& file, const std::string& name) {
  const FileTensor& tensor = file.tensors.at(name);
  REQUIRE(tensor.dtype == DTypeOf<T>::value);
  std::vector<T> result(tensor.bytes.size() / sizeof(T));
  std::memcpy(result.data(), tensor.bytes.data(), tensor.bytes.size());
  return result;
}

/// The largest difference between fp64 numbers in tensors whose names begin so.
inline double farthest_in(const SafetensorsFile& a, const SafetensorsFile& b,
                          const std::string& prefix = "") {
  double largest = 0.0;
  for (const auto& [name, tensor] : a.tensors) {
    if (!name.starts_with(prefix) || tensor.dtype != DType::kFloat64) continue;
    const std::vector<double> of_a = numbers_in(a, name), of_b = numbers_in(b, name);
    REQUIRE(of_a.size() == of_b.size());
    for (std::size_t i = 0; i < of_a.size(); ++i)
      largest = std::max(largest, std::abs(of_a[i] - of_b[i]));
  }
  return largest;
}

/// A trainer of one rank with all that it needs, on one thread of the CPU, at its beginning.
struct TrainerRun {
  /// `change`: of the config as it was read, such as the stretches that a checkpoint tells. `kept`:
  /// what it is to resume from, in memory of `before`.
  TrainerRun(const nlohmann::json& json, Transport& ranks,
             const std::function<void(TrainConfig&)>& change = {},
             const SafetensorsFile* kept = nullptr, std::shared_ptr<Backend> before = nullptr)
      : transport(ranks),
        site{ranks.size(), ranks.size()},
        config(changed(read_train_config(json, "test", site), change)),
        trace(trace_shapes(config)),
        backend(before ? std::move(before) : open_backend(DeviceType::kCpu, 1)) {
    site.replica = config.sync.replica;
    config.data.dataset->open();
    tell_classes(config);
    trainer = std::make_unique<Trainer>(config, site, trace, *backend, transport, kept);
    if (!kept) trainer->initialise();
  }
  ~TrainerRun() {
    trainer.reset();
    config.model.reset();  // their tensors go before the backend
    config.task.reset();
  }
  static TrainConfig changed(TrainConfig config, const std::function<void(TrainConfig&)>& change) {
    if (change) change(config);
    return config;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) trainer->step();
    trainer->finish();
  }
  EvaluationResult test() {
    return trainer->test([](const EvaluationResult&) {});
  }
  /// The rank's part of a checkpoint after so many steps more.
  SafetensorsFile state_after(int count) {
    steps(count);
    return trainer->state();
  }
  /// Whether the copies that products read are the parameters, rounded.
  bool low_is_current() const {
    int copies = 0;
    for (const Parameter* parameter : config.model->parameters()) {
      if (!parameter->low) continue;
      ++copies;
      const Tensor rounded(*backend, parameter->shape, config.device.compute);
      backend->cast({.x = parameter->value, .y = rounded});
      if (std::memcmp(rounded.raw(), parameter->low.raw(), rounded.bytes()) != 0) return false;
    }
    return copies > 0;
  }

  Transport& transport;
  RankLayout site;
  TrainConfig config;
  ShapeTrace trace;
  std::shared_ptr<Backend> backend;
  std::unique_ptr<Trainer> trainer;
};

inline void check_same_tensors(const SafetensorsFile& a, const SafetensorsFile& b) {
  CHECK(a.tensors.size() == b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    CAPTURE(name);
    REQUIRE(b.tensors.count(name) == 1);
    CHECK(b.tensors.at(name).bytes == tensor.bytes);
  }
}

/// A run that goes on from `saved` for `count` steps comes to the bits of `straight`, which did not
/// stop.
inline void check_resumed(const nlohmann::json& json, Transport& transport,
                          const SafetensorsFile& saved, int count,
                          const SafetensorsFile& straight) {
  TrainerRun run(json, transport);
  check_resumable(saved, "test", run.config.resolved, run.config.written, transport.size(),
                  run.config.device.compute);
  run.trainer->resume(saved, "test");
  check_same_tensors(straight, run.state_after(count));
}

/// A metric of a test; NaN where it has none of that name.
inline double value_of(const EvaluationResult& result, const std::string& name) {
  for (const MetricValue& value : result.values) {
    if (value.name == name) return value.value;
  }
  return std::nan("");
}

}  // namespace starling::test
