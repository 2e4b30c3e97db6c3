#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/error.h"

namespace starling {

/// Calls fn with a value of the C++ type that `dtype` is: dispatch(x.dtype(), [&](auto number) {
/// sum<decltype(number)>(x); }).
template <class Function>
void dispatch(DType dtype, const Function& fn) {
  switch (dtype) {
    case DType::kFloat32: return fn(float{});
    case DType::kFloat64: return fn(double{});
    case DType::kBFloat16: return fn(BFloat16{});
    case DType::kFloat16: return fn(Float16{});
    case DType::kInt64: return fn(std::int64_t{});
    case DType::kInt32: return fn(std::int32_t{});
    case DType::kUInt8: return fn(std::uint8_t{});
  }
}

/// The same where the dtype is a floating one: fp32, fp64, bf16 or fp16.
template <class Function>
void dispatch_floating(DType dtype, Function&& fn) {
  switch (dtype) {
    case DType::kFloat32: return fn(float{});
    case DType::kFloat64: return fn(double{});
    case DType::kBFloat16: return fn(BFloat16{});
    case DType::kFloat16: return fn(Float16{});
    default: fail(ExitCode::kInternal, "dtype", "{} is no floating dtype", name_of(dtype));
  }
}

}  // namespace starling
