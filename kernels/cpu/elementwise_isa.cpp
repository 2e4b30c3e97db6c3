#include "kernels/cpu/kernels.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"

namespace starling::cpu::STARLING_ISA {
namespace {

#define STARLING_LOOP _Pragma("GCC ivdep")

// In all of these the output may be an input: elements are read before they are written.

template <class T>
static void activation_forward(Activation kind, const T* x, T* y, Index n) {
  switch (kind) {
    case Activation::kNone: STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = x[i]; break;
    case Activation::kRelu: STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = math::relu(x[i]); break;
    case Activation::kGelu: STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = math::gelu(x[i]); break;
    case Activation::kSilu: STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = math::silu(x[i]); break;
  }
}

template <class T>
static void activation_backward(Activation kind, const T* x, const T* dy, T* dx, Index n) {
  switch (kind) {
    case Activation::kNone: STARLING_LOOP for (Index i = 0; i < n; ++i) dx[i] = dy[i]; break;
    case Activation::kRelu:
      STARLING_LOOP for (Index i = 0; i < n; ++i) {
        const T g = dy[i];
        dx[i] = x[i] > T(0) ? g : T(0);
      }
      break;
    case Activation::kGelu: STARLING_LOOP for (Index i = 0; i < n; ++i) dx[i] = dy[i] * math::gelu_derivative(x[i]); break;
    case Activation::kSilu: STARLING_LOOP for (Index i = 0; i < n; ++i) dx[i] = dy[i] * math::silu_derivative(x[i]); break;
  }
}

template <class T>
static void add(const T* a, const T* b, T* y, Index n) {
  STARLING_LOOP for (Index i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

template <class T>
static void fill(T* y, T value, Index n) {
  for (Index i = 0; i < n; ++i) y[i] = value;
}

template <class T>
static void dropout(const T* x, T* y, Index first, Index n, double p, std::uint64_t key, std::uint64_t counter) {
  const float threshold = static_cast<float>(p);
  const T scale = p < 1.0 ? static_cast<T>(1.0 / (1.0 - p)) : T(0);
  for (Index i = 0; i < n; i += 4) {
    const math::DropoutMask mask = math::dropout_mask(key, counter, static_cast<std::uint64_t>((first + i) / 4), threshold);
    const Index count = n - i < 4 ? n - i : 4;
    for (Index j = 0; j < count; ++j) y[first + i + j] = mask.keep[j] ? x[first + i + j] * scale : T(0);
  }
}

template <class T>
static void weighted_sum(const T* const* in, const T* weight, int terms, T* out, Index n, bool accumulate) {
  constexpr Index kPiece = 1024;  // stays in the first cache while the terms go over it
  for (Index begin = 0; begin < n; begin += kPiece) {
    const Index end = begin + kPiece < n ? begin + kPiece : n;
    T sum[kPiece];
    for (Index i = 0; i < end - begin; ++i) sum[i] = accumulate ? out[begin + i] : T(0);
    for (int k = 0; k < terms; ++k) {
      const T* __restrict from = in[k] + begin;
      const T w = weight[k];
      for (Index i = 0; i < end - begin; ++i) sum[i] += w * from[i];
    }
    for (Index i = 0; i < end - begin; ++i) out[begin + i] = sum[i];
  }
}

template <class T>
static double squared_distance(const T* x, const T* y, Index n) {
  constexpr Index kLanes = 32;
  double lane[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) {
      const double d = static_cast<double>(x[i + j]) - (y ? static_cast<double>(y[i + j]) : 0.0);
      lane[j] += d * d;
    }
  }
  double sum = 0.0;
  for (Index j = 0; j < kLanes; ++j) sum += lane[j];
  for (; i < n; ++i) {
    const double d = static_cast<double>(x[i]) - (y ? static_cast<double>(y[i]) : 0.0);
    sum += d * d;
  }
  return sum;
}

template <class T>
static void set(Kernels<T>& table) {
  table.activation_forward = activation_forward<T>;
  table.activation_backward = activation_backward<T>;
  table.add = add<T>;
  table.fill = fill<T>;
  table.dropout = dropout<T>;
  table.weighted_sum = weighted_sum<T>;
  table.squared_distance = squared_distance<T>;
}

}  // namespace

void add_elementwise(Kernels<float>& table) { set(table); }
void add_elementwise(Kernels<double>& table) { set(table); }

}  // namespace starling::cpu::STARLING_ISA
