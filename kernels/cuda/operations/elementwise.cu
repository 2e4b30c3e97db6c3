#include <array>
#include <cstdint>

#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/math/dropout.h"

// Weighted sums, casts and dropout.
namespace starling::cuda {
namespace {

/// Σ weight_k x_k over the first `terms` of at most kMost terms, from the first on.
template <class T, int kMost>
struct SumWithWeights {
  static constexpr int kInputs = kMost;
  T weight[kMost];
  int terms;
  template <int N>
  STARLING_HD void operator()(Index, const T (&x)[kMost][N], T (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = T(0);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (kMost > 3 && k >= terms) break;
#pragma unroll
      for (int i = 0; i < N; ++i) y[i] += weight[k] * x[k][i];
    }
  }
};

template <class T, int kMost>
void sum_with_weights(StreamHandle stream, Index n, const T* const* in, const double* weight,
                      int terms, T* out) {
  std::array<const T*, static_cast<std::size_t>(kMost)> from{};
  SumWithWeights<Compute<T>, kMost> sum{};
  sum.terms = terms;
  for (int k = 0; k < terms; ++k) {
    from[static_cast<std::size_t>(k)] = in[k];
    sum.weight[k] = static_cast<Compute<T>>(weight[k]);
  }
  pointwise<T, T>(stream, n, from, out, sum);
}

}  // namespace

void CudaBackend::issue(const WeightedSum& args) {
  floating(args.out, [&](auto type) {
    using T = decltype(type);
    const Index n = args.out.elements();
    T* out = args.out.data<T>();
    std::array<const T*, 9> in{};
    std::array<double, 9> weight{};
    int terms = 0;
    const auto term = [&](const T* from, double factor) {
      in[static_cast<std::size_t>(terms)] = from;
      weight[static_cast<std::size_t>(terms++)] = factor;
    };
    if (args.accumulate) term(out, 1.0);
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i) {
      term(args.in[i].data<T>(), args.weight[i]);
    }
    switch (terms) {
      case 0: return fill(args.out, 0.0);
      case 1: return sum_with_weights<T, 1>(handle(), n, in.data(), weight.data(), terms, out);
      case 2: return sum_with_weights<T, 2>(handle(), n, in.data(), weight.data(), terms, out);
      case 3: return sum_with_weights<T, 3>(handle(), n, in.data(), weight.data(), terms, out);
      default: return sum_with_weights<T, 9>(handle(), n, in.data(), weight.data(), terms, out);
    }
  });
}

namespace {

template <class From, class To>
void cast_numbers(StreamHandle stream, const Tensor& x, const Tensor& y) {
  pointwise<From, To>(stream, x.elements(), {x.data<From>()}, y.data<To>(),
                      Convert<Compute<From>, Compute<To>>{});
}

template <class From>
void cast_from(StreamHandle stream, const Tensor& x, const Tensor& y) {
  dispatch_floating(y.dtype(), [&](auto to) { cast_numbers<From, decltype(to)>(stream, x, y); });
}

}  // namespace

void CudaBackend::issue(const Cast& args) {
  if (args.x.dtype() == DType::kUInt8) return cast_from<std::uint8_t>(handle(), args.x, args.y);
  if (args.x.dtype() == DType::kInt32) return cast_from<std::int32_t>(handle(), args.x, args.y);
  dispatch_floating(args.x.dtype(),
                    [&](auto from) { cast_from<decltype(from)>(handle(), args.x, args.y); });
}

namespace {

template <class T>
struct Drop {
  static constexpr int kInputs = 1;
  std::uint64_t key;
  StepScalar<std::uint64_t> counter;
  float p;
  T scale;

  /// Bit j: element 4·group + j is kept.
  STARLING_HD unsigned kept(Index group) const {
    const math::DropoutMask mask =
        math::dropout_mask(key, counter.get(), static_cast<std::uint64_t>(group), p);
    return (mask.keep[0] ? 1u : 0u) | (mask.keep[1] ? 2u : 0u) | (mask.keep[2] ? 4u : 0u) |
           (mask.keep[3] ? 8u : 0u);
  }
  /// `first` need not be a multiple of 4: a tensor may start anywhere in its storage.
  template <int N>
  STARLING_HD void operator()(Index first, const T (&x)[1][N], T (&y)[N]) const {
    const int skip = static_cast<int>(first & 3);
    unsigned keep = 0;
#pragma unroll
    for (int g = 0; g < (N + 6) / 4; ++g) {
      if (4 * g < skip + N) keep |= kept((first >> 2) + g) << (4 * g);
    }
    keep >>= skip;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = (keep >> i) & 1u ? x[0][i] * scale : T(0);
  }
};

}  // namespace

void CudaBackend::issue(const Dropout& args) {
  const auto counter = step_scalar<std::uint64_t>(
      args.counter, [at = args.counter](const StepValues& now, const StepValues& then) {
        return at - then.dropout_counter + now.dropout_counter;
      });
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements();
    const double scale = args.p < 1.0 ? 1.0 / (1.0 - args.p) : 0.0;
    pointwise<T, T>(handle(), n, {args.x.data<T>()}, args.y.data<T>(),
                    Drop<Compute<T>>{args.key, counter, static_cast<float>(args.p),
                                     static_cast<Compute<T>>(scale)});
  });
}

}  // namespace starling::cuda
