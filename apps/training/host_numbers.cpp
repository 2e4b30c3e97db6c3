#include "apps/training/host_numbers.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/backend.h"
#include "core/checksum.h"
#include "core/dispatch.h"
#include "core/error.h"
#include "core/safetensors.h"

namespace starling {

HostBytes::HostBytes(const Tensor& tensor) : size_(tensor.bytes()) {
  if (tensor.backend().device() == DeviceType::kCpu) {
    data_ = tensor.raw();
    return;
  }
  copy_.resize(size_);
  tensor.backend().copy_to_host(tensor, copy_.data());
  data_ = copy_.data();
}

std::string tensor_checksum(const Tensor& tensor) {
  const HostBytes bytes(tensor);
  return checksum(bytes.data(), bytes.size());
}

std::vector<double> host_numbers(const Tensor& tensor) {
  const HostBytes bytes(tensor);
  std::vector<double> numbers(static_cast<std::size_t>(tensor.elements()));
  dispatch(tensor.dtype(), [&](auto kind) {
    using T = decltype(kind);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      T number;
      std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
      if constexpr (std::is_arithmetic_v<T>)
        numbers[i] = static_cast<double>(number);
      else
        numbers[i] = static_cast<double>(static_cast<float>(number));
    }
  });
  return numbers;
}

void check_finite(const Tensor& tensor, const std::string& key, const std::string& what, int rank,
                  std::int64_t step) {
  if (!is_floating(tensor.dtype()) || tensor.backend().device() == DeviceType::kMeta) return;
  const HostBytes bytes(tensor);
  if (all_finite(tensor.dtype(), {bytes.data(), bytes.size()})) return;
  const std::vector<double> numbers = host_numbers(tensor);
  std::size_t bad = 0, first = 0;
  for (std::size_t i = numbers.size(); i-- > 0;) {
    if (std::isfinite(numbers[i])) continue;
    ++bad;
    first = i;
  }
  fail(ExitCode::kDiverged, "numbers", {.key = key, .rank = rank, .step = step},
       "{} in step {} on rank {} has {} of {} numbers that are not finite, the first {} at {}; all "
       "that was made before it was finite",
       what, step, rank, bad, numbers.size(), numbers[first], first);
}

}  // namespace starling
