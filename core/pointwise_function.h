#pragma once

#include <cstdint>

#include "core/custom_operation.h"
#include "core/dispatch.h"
#include "core/dtype.h"
#include "core/host_device.h"

// The operation of a pointwise function of an author's own: layers/pointwise_function.h.
namespace starling {

/// y = value(x), or, where dy is there, dy · derivative(x). Tensors have one floating dtype and as
/// many numbers.
struct PointwiseCall {
  Tensor x, dy, y;
};

namespace detail {

// One copy for each instruction set, of which the first call takes the best.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
#define STARLING_EVERY_ISA \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STARLING_EVERY_ISA
#endif

/// A number's value, and its gradient times dy, in storage type T.
template <class F, class T>
STARLING_HD T pointwise_value(T x) {
  return static_cast<T>(F::value(static_cast<Compute<T>>(x)));
}
template <class F, class T>
STARLING_HD T pointwise_gradient(T x, T dy) {
  const auto a = static_cast<Compute<T>>(x);
  return static_cast<T>(static_cast<Compute<T>>(dy) * F::derivative(a, F::value(a)));
}

template <class F, class T>
STARLING_EVERY_ISA void pointwise_loop(const T* x, const T* dy, T* y, std::int64_t n) {
  if (dy) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = pointwise_gradient<F>(x[i], dy[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = pointwise_value<F>(x[i]);
  }
}
#undef STARLING_EVERY_ISA

}  // namespace detail

/// The function's operation: on a CPU, and on a GPU where a .cu file has its line.
template <class F>
CustomOperation<PointwiseCall>& pointwise_operation() {
  static CustomOperation<PointwiseCall> operation(F::kName);
  static const bool on_cpu = operation.add(DeviceType::kCpu, [](Backend&, const PointwiseCall& c) {
    dispatch_floating(c.x.dtype(), [&](auto type) {
      using T = decltype(type);
      detail::pointwise_loop<F, T>(c.x.data<T>(), c.dy ? c.dy.data<T>() : nullptr, c.y.data<T>(),
                                   c.x.elements());
    });
  });
  (void)on_cpu;
  return operation;
}

}  // namespace starling
