#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/tensor.h"

namespace starling {

/// The dtype of statistics and accumulators for tensors of this one: fp32 for bf16 and fp16,
/// otherwise the same.
inline DType wide_of(DType dtype) { return is_low_precision(dtype) ? DType::kFloat32 : dtype; }

/// Checks the arguments of an operation. Each check throws Error(kInternal) with operation and
/// tensor.
class Checker {
 public:
  explicit Checker(std::string_view operation) : operation_(operation) {}

  /// It is not empty.
  void there(const Tensor& x, const char* name) const {
    require(static_cast<bool>(x), "operation", "{}: {} is missing", operation_, name);
  }
  /// It is not empty, and is fp32, fp64, bf16 or fp16.
  void floating(const Tensor& x, const char* name) const {
    there(x, name);
    that(is_floating(x.dtype()), "{} is {}; needed: fp32, fp64, bf16 or fp16", name,
         name_of(x.dtype()));
  }
  /// It has this number of elements and dtype.
  void has(const Tensor& x, const char* name, std::int64_t elements, DType dtype) const;
  /// The same, unless it is empty.
  void may_have(const Tensor& x, const char* name, std::int64_t elements, DType dtype) const {
    if (x) has(x, name, elements, dtype);
  }

  /// Rows, which are all dimensions but the last, and columns of floating numbers in two or more
  /// dimensions.
  struct Matrix {
    std::int64_t rows = 0, columns = 0;
    std::int64_t elements() const { return rows * columns; }
  };
  Matrix matrix(const Tensor& x, const char* name) const;

  template <class... Args>
  void that(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition)
      require(false, "operation", "{}: {}", operation_,
              fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string_view operation_;
};

}  // namespace starling
