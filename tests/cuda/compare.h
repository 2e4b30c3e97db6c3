#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/backend.h"

// One operation, on the GPU's backend and on the CPU's, over precisions and places in memory.
namespace starling::tests {

/// What a tensor holds before the call.
struct Given {
  std::vector<double> numbers;
  Shape shape;
};

enum class Agreement {
  kClose,  ///< fp64 to 1e-12, fp32 to the tolerance, low precision to a rounding step
  kPlain,  ///< the same bits as the CPU without fused multiply-add: on a GPU as kClose
  kBits,   ///< the same bits everywhere
};

struct Comparison {
  std::vector<Given> in, out;
  /// Issues the operation. Tensors that are not floating it makes itself (int_tensor).
  std::function<void(Backend&, const std::vector<Tensor>& in, const std::vector<Tensor>& out)> call;
  Agreement agreement = Agreement::kPlain;
  double tolerance = 1e-6;  ///< fp32, relative to the largest output
  bool wide_out = false;    ///< for low precision the outputs are fp32
};

/// Runs the call in fp64, fp32, bf16 and fp16, from tensors that start on a 16-byte boundary, all one element past one, and each at another
/// place, and compares with the CPU's fp64 or fp32 on the same (rounded) numbers. Nothing around the outputs may change.
void compare(const Comparison& c);

Given random_given(const Shape& shape, std::uint64_t seed, double scale = 1.0);
Given zeros(const Shape& shape);
Tensor int_tensor(Backend& backend, const std::vector<std::int32_t>& numbers, const Shape& shape);
/// The same numbers, rounded to dtype, `offset` elements into memory of their own.
Tensor placed(Backend& backend, const Given& given, DType dtype, std::int64_t offset);
std::vector<double> numbers_of(const Tensor& x);
/// The CPU that results are compared with: without fused multiply-add, as the shim computes.
Backend& plain_cpu();
/// Numbers as `dtype` holds them.
inline std::vector<double> rounded(const std::vector<double>& numbers, DType dtype) {
  return numbers_of(placed(plain_cpu(), {numbers, {static_cast<std::int64_t>(numbers.size())}}, dtype, 0));
}

inline constexpr DType kFloatingTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};

}  // namespace starling::tests
