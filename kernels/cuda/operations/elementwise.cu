#include <array>

#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"

// Weighted sums.
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

}  // namespace starling::cuda
