#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/backend.h"
#include "core/operations/losses.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"
#include "tests/kernels/optimizer_reference.h"

// Work to be captured, on the shim and on a GPU.
namespace starling::tests {

template <class T>
Tensor put(Backend& backend, const std::vector<T>& values) {
  const Tensor x(backend, Shape{static_cast<std::int64_t>(values.size())}, DTypeOf<T>::value);
  backend.copy_from_host(values.data(), x);
  return x;
}
inline std::vector<std::byte> bytes_of(Backend& backend, const Tensor& x) {
  std::vector<std::byte> bytes(x.bytes());
  backend.copy_to_host(x, bytes.data());
  return bytes;
}

/// A step's work on two streams: everything whose arguments change from step to step.
struct GraphWork {
  static constexpr std::int64_t kRows = 16, kClasses = 8, kN = kRows * kClasses;

  explicit GraphWork(Backend& to)
      : backend(to), rule(test::make_rule("adamw", nlohmann::json::object())) {
    x = Tensor(backend, Shape{kRows, kClasses}, DType::kFloat32);
    labels = Tensor(backend, Shape{kRows}, DType::kInt32);
    loss = Tensor(backend, Shape{1}, DType::kFloat32);
    totals = Tensor(backend, Shape{1}, DType::kFloat64);
    args.control = Tensor(backend, Shape{2}, DType::kFloat64);
    args.x = args.x_out = put(backend, test::normal_numbers<float>(kN, 1));
    args.gradient = Tensor(backend, Shape{kN}, DType::kFloat32);
    for (int s = 0; s < 2; ++s) args.states.push_back(put(backend, std::vector<float>(kN, 0.0f)));
    args.decay = put(backend, std::vector<std::uint8_t>(kN / 32, 1));
  }

  void set_input(unsigned seed) {
    backend.copy_from_host(test::normal_numbers<float>(kN, seed).data(), x);
    std::vector<std::int32_t> classes(kRows);
    for (std::size_t i = 0; i < kRows; ++i)
      classes[i] = static_cast<std::int32_t>((i * 5 + seed) % kClasses);
    backend.copy_from_host(classes.data(), labels);
  }

  void issue(const StepValues& values) {
    const Tensor dropped(backend, x.shape(), x.dtype());
    backend.dropout(
        {.x = x, .y = dropped, .p = 0.3, .key = 11, .counter = values.dropout_counter + 3});
    const Tensor gradient = args.gradient.reshaped(x.shape());
    backend.target_loss({.x = dropped,
                         .targets = labels,
                         .loss = loss,
                         .dx = gradient,
                         .scale = 1.0 / kRows,
                         .gradient_scale = values.loss_scale});
    const Event produced = backend.record();
    Event updated;
    {
      const StreamScope scope(backend, StreamKind::kUpdate);
      backend.wait(produced);
      backend.fill(totals, 0.0);
      backend.reduce(Reduce::squared_distance(args.gradient, {}, totals, 0));
      backend.gradient_control({.totals = totals,
                                .count = 1,
                                .scale = 1.0 / values.loss_scale,
                                .clip = 0.05,
                                .check_finite = true,
                                .control = args.control});
      args.lr = values.lr;
      args.step = values.step;
      args.gradient_scale = 1.0 / values.loss_scale;
      backend.update({*rule, args});
      updated = backend.record();
    }
    backend.wait(updated);
  }

  std::vector<std::vector<std::byte>> results() {
    std::vector<std::vector<std::byte>> all;
    for (const Tensor& tensor :
         {loss, totals, args.control, args.x, args.gradient, args.states[0], args.states[1]}) {
      all.push_back(bytes_of(backend, tensor));
    }
    return all;
  }

  Backend& backend;
  std::unique_ptr<OptimizerRule> rule;
  Tensor x, labels, loss, totals;
  UpdateArgs args;
};

inline StepValues values_of(std::int64_t step) {
  return {.lr = 0.01 / static_cast<double>(step),
          .step = step,
          .loss_scale = step % 2 == 0 ? 1024.0 : 256.0,
          .dropout_counter = static_cast<std::uint64_t>(step) << 24};
}

}  // namespace starling::tests
