#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/safetensors.h"
#include "kernels/open_backend.h"
#include "layers/functions.h"

namespace starling::testing {

inline Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

/// Numbers in a file's order into a floating tensor. Images are laid out as convolution weights
/// are: channels last in memory.
inline void load(const std::vector<double>& numbers, const Tensor& to, TensorLayout layout) {
  REQUIRE(static_cast<std::int64_t>(numbers.size()) == to.elements());
  const Tensor wide(cpu(), to.shape(), DType::kFloat64);
  std::vector<double> memory(numbers.size());
  to_memory_layout(reinterpret_cast<const std::byte*>(numbers.data()), to.shape(), layout,
                   sizeof(double), reinterpret_cast<std::byte*>(memory.data()));
  cpu().copy_from_host(memory.data(), wide);
  cpu().copy(functions::in_format(wide, to.dtype(), cpu()), to);
}

/// Numbers in [0, 1) as golden/make_models.py's hashed() makes them.
inline std::vector<double> hashed(std::uint64_t seed, std::size_t count) {
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t z = (seed << 32) + i + 0x9E3779B97F4A7C15ull;  // splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    result[i] = static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  return result;
}

}  // namespace starling::testing
