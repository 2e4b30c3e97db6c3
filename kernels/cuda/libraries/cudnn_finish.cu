#include "kernels/cuda/libraries/cudnn_finish.h"

#include "core/error.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {

namespace {

/// Elements a thread takes at once: two packs of fp32, one of low precision
constexpr int kFinishGroup = 8;

template <class T, class B>
__global__ void add_channel_bias_kernel(T* y, const B* bias, Index rows, Index channels,
                                        bool packs) {
  const Index threads = Index{gridDim.x} * blockDim.x,
              first = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  const Index n = rows * channels;
  if (packs) {  // channels are a multiple of the group
    for (Index i = first * kFinishGroup; i < n; i += threads * kFinishGroup) {
      Compute<T> v[kFinishGroup];
      Compute<B> b[kFinishGroup];
      load_wide<kFinishGroup>(y + i, v);
      load_wide<kFinishGroup>(bias + i % channels, b);
      for (int k = 0; k < kFinishGroup; ++k) v[k] += static_cast<Compute<T>>(b[k]);
      store_narrow<kFinishGroup>(v, y + i);
    }
    return;
  }
  for (Index i = first; i < n; i += threads)
    y[i] = narrow<T>(widen(y[i]) + static_cast<Compute<T>>(widen(bias[i % channels])));
}

template <class T>
__global__ void take_gradient_kernel(const T* from, float* to, Index n, bool accumulate,
                                     bool packs) {
  const Index threads = Index{gridDim.x} * blockDim.x,
              first = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  const Index whole = packs ? n / kFinishGroup * kFinishGroup : 0;
  for (Index i = first * kFinishGroup; i < whole; i += threads * kFinishGroup) {
    float value[kFinishGroup], before[kFinishGroup];
    load_wide<kFinishGroup>(from + i, value);
    if (accumulate) {
      load<kFinishGroup>(to + i, before);
      for (int k = 0; k < kFinishGroup; ++k) value[k] += before[k];
    }
    store<kFinishGroup>(value, to + i);
  }
  for (Index i = whole + first; i < n; i += threads)
    to[i] = (accumulate ? to[i] : 0.0f) + widen(from[i]);
}

template <class F>
void type_of(const Tensor& x, F&& f) {
  switch (x.dtype()) {
    case DType::kFloat32: return f(float{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kFloat16: return f(Float16{});
    default: break;
  }
  fail(ExitCode::kInternal, "cudnn", "a step on a {} tensor", name_of(x.dtype()));
}

}  // namespace

void add_channel_bias(const Tensor& y, const Tensor& bias, StreamHandle stream) {
  const Index channels = bias.elements(), rows = y.elements() / channels;
  const auto add = [&](auto* to, const auto* from) {
    const bool packs = channels % kFinishGroup == 0 && packable(to, from);
    launch(add_channel_bias_kernel<std::remove_pointer_t<decltype(to)>,
                                   std::remove_const_t<std::remove_pointer_t<decltype(from)>>>,
           {{blocks_for(y.elements(), kThreads, kFinishGroup)}, {kThreads}, stream}, to, from, rows,
           channels, packs);
  };
  type_of(y, [&](auto type) {
    using T = decltype(type);
    T* to = y.data<T>();
    if (bias.dtype() == DType::kFloat32) {
      add(to, static_cast<const float*>(bias.data<float>()));
    } else {
      add(to, static_cast<const T*>(bias.data<T>()));
    }
  });
}

void take_gradient(const Tensor& from, const Tensor& to, bool accumulate, StreamHandle stream) {
  require(from.elements() == to.elements(), "cudnn", "a gradient of {} elements for {}",
          from.elements(), to.elements());
  type_of(from, [&](auto type) {
    using T = decltype(type);
    const T* source = from.data<T>();
    float* target = to.data<float>();
    launch(take_gradient_kernel<T>,
           {{blocks_for(from.elements(), kThreads, kFinishGroup)}, {kThreads}, stream}, source,
           target, from.elements(), accumulate, packable(source, target));
  });
}

}  // namespace starling::cuda
