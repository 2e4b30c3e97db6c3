#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "apps/bench/support.h"
#include "core/backend.h"
#include "core/operations/pointwise.h"

namespace starling {

Tensor patterned(Backend& backend, const Shape& shape, DType dtype) {
  Tensor result(backend, shape, dtype);
  if (!is_floating(dtype)) return result;
  std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 0.01f * static_cast<float>(i % 97) - 0.5f;
  const Tensor wide = dtype == DType::kFloat32 ? result : Tensor(backend, shape, DType::kFloat32);
  backend.copy_from_host(numbers.data(), wide);
  if (dtype != DType::kFloat32) backend.cast({.x = wide, .y = result});
  return result;
}

Timing::Timing(Backend& backend, std::function<void()> work)
    : backend_(backend), work_(std::move(work)) {
  constexpr double kSeconds = 4e-3;
  seconds_each(1);  // the first call may plan and allocate
  calls_ = static_cast<int>(std::clamp(std::ceil(kSeconds / seconds_each(1)), 1.0, 100.0));
}

void Timing::add() { seconds_.push_back(seconds_each(calls_)); }

double Timing::seconds_each(int calls) const {
  backend_.synchronize();
  return seconds_of([&] {
           for (int i = 0; i < calls; ++i) work_();
           backend_.synchronize();
         }) /
         calls;
}

}  // namespace starling
