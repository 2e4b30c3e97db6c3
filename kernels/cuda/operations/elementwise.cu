#include <array>
#include <type_traits>

#include "core/operations/pointwise.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/math/activations.h"

// Activations and sums.
namespace starling::cuda {
namespace {

template <class T, Activation kKind>
struct Activate {
  static constexpr int kInputs = 1;
  template <int N>
  STARLING_HD void operator()(Index, const T (&x)[1][N], T (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kKind == Activation::kRelu) {
        y[i] = math::relu(x[0][i]);
      } else if constexpr (kKind == Activation::kGelu) {
        y[i] = math::gelu(x[0][i]);
      } else if constexpr (kKind == Activation::kSilu) {
        y[i] = math::silu(x[0][i]);
      } else if constexpr (kKind == Activation::kRelu6) {
        y[i] = math::relu6(x[0][i]);
      } else {
        y[i] = x[0][i];
      }
    }
  }
};

/// Makes dx from x and dy.
template <class T, Activation kKind>
struct ActivateBackward {
  static constexpr int kInputs = 2;
  template <int N>
  STARLING_HD void operator()(Index, const T (&x)[2][N], T (&dx)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kKind == Activation::kRelu) {
        dx[i] = x[0][i] > T(0) ? x[1][i] : T(0);
      } else if constexpr (kKind == Activation::kGelu) {
        dx[i] = x[1][i] * math::gelu_derivative(x[0][i]);
      } else if constexpr (kKind == Activation::kSilu) {
        dx[i] = x[1][i] * math::silu_derivative(x[0][i]);
      } else if constexpr (kKind == Activation::kRelu6) {
        dx[i] = x[0][i] > T(0) && x[0][i] < T(6) ? x[1][i] : T(0);
      } else {
        dx[i] = x[1][i];
      }
    }
  }
};

template <class T>
struct Sum {
  static constexpr int kInputs = 2;
  template <int N>
  STARLING_HD void operator()(Index, const T (&x)[2][N], T (&y)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = x[0][i] + x[1][i];
  }
};

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

/// Calls f with the kind as a constant.
template <class F>
void with_activation(Activation kind, F f) {
  switch (kind) {
    case Activation::kNone: return f(std::integral_constant<Activation, Activation::kNone>{});
    case Activation::kRelu: return f(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kGelu: return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kRelu6: return f(std::integral_constant<Activation, Activation::kRelu6>{});
  }
}

}  // namespace

void CudaBackend::issue(const ActivationForward& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements();
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    with_activation(args.kind, [&](auto kind) {
      pointwise<T, T>(handle(), n, {x}, y, Activate<Compute<T>, decltype(kind)::value>{});
    });
  });
}

void CudaBackend::issue(const ActivationBackward& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements();
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    with_activation(args.kind, [&](auto kind) {
      pointwise<T, T>(handle(), n, {x, dy}, dx,
                      ActivateBackward<Compute<T>, decltype(kind)::value>{});
    });
  });
}

void CudaBackend::issue(const Add& args) {
  floating(args.a, [&](auto type) {
    using T = decltype(type);
    const Index n = args.a.elements();
    const T* a = args.a.data<T>();
    const T* b = args.b.data<T>();
    pointwise<T, T>(handle(), n, {a, b}, args.y.data<T>(), Sum<Compute<T>>{});
  });
}

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
