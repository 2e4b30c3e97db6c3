#include "kernels/cpu/window_isa.h"

namespace starling::cpu::STARLING_ISA {
namespace {

template <class T>
static void max_pool_forward(const T* x, T* y, std::int32_t* index, const Geometry& g, Index first,
                             Index last) {
  const Index channels = g.channels, pixels = g.height * g.width,
              outputs = g.out_height * g.out_width;
  for (Index n = first; n < last; ++n) {
    const T* image = x + n * pixels * channels;
    for (Index o = 0; o < outputs; ++o) {
      T* __restrict out = y + (n * outputs + o) * channels;
      std::int32_t* __restrict where = index ? index + (n * outputs + o) * channels : nullptr;
      bool started = false;
      for (Index c = 0; c < channels; ++c) out[c] = -static_cast<T>(__builtin_inf());
      if (where) {
        for (Index c = 0; c < channels; ++c) where[c] = -1;
      }
      for_window(
          g, o / g.out_width,
          o % g.out_width, [&](Index, Index pixel) __attribute__((always_inline)) {
            const T* __restrict from = image + pixel * channels;
            const auto here = static_cast<std::int32_t>(pixel);
            if (!started) {
              started = true;
              for (Index c = 0; c < channels; ++c) out[c] = from[c];
              if (where) {
                for (Index c = 0; c < channels; ++c) where[c] = here;
              }
            } else if (where) {
              STARLING_LOOP for (Index c = 0; c < channels; ++c) {
                const T value = from[c], best = out[c];
                // NaN wins, so that divergence shows
                const bool better = (value > best) | (__builtin_isnan(value));
                out[c] = better ? value : best;
                where[c] = better ? here : where[c];
              }
            } else {
              STARLING_LOOP for (Index c = 0; c < channels; ++c) {
                const T value = from[c], best = out[c];
                out[c] = ((value > best) | (__builtin_isnan(value))) ? value : best;
              }
            }
          });
    }
  }
}

template <class T>
static void max_pool_backward(const T* dy, const std::int32_t* index, T* dx, const Geometry& g,
                              Index first, Index last) {
  const Index channels = g.channels, pixels = g.height * g.width,
              outputs = g.out_height * g.out_width;
  for (Index n = first; n < last; ++n) {
    T* image = dx + n * pixels * channels;
    for (Index i = 0; i < pixels * channels; ++i) image[i] = T(0);
    for (Index o = 0; o < outputs; ++o) {
      const T* from = dy + (n * outputs + o) * channels;
      const std::int32_t* where = index + (n * outputs + o) * channels;
      for (Index c = 0; c < channels; ++c) {
        if (where[c] >= 0) image[where[c] * channels + c] += from[c];
      }
    }
  }
}

template <class T>
static void avg_pool_forward(const T* x, T* y, const Geometry& g, Index first, Index last) {
  const Index channels = g.channels, pixels = g.height * g.width,
              outputs = g.out_height * g.out_width;
  const T share = static_cast<T>(1.0 / static_cast<double>(g.kernel_h * g.kernel_w));
  for (Index n = first; n < last; ++n) {
    const T* image = x + n * pixels * channels;
    for (Index o = 0; o < outputs; ++o) {
      T* __restrict out = y + (n * outputs + o) * channels;
      for (Index c = 0; c < channels; ++c) out[c] = T(0);
      for_window(
          g, o / g.out_width,
          o % g.out_width, [&](Index, Index pixel) __attribute__((always_inline)) {
            const T* __restrict from = image + pixel * channels;
            STARLING_LOOP for (Index c = 0; c < channels; ++c) out[c] += from[c];
          });
      for (Index c = 0; c < channels; ++c) out[c] *= share;
    }
  }
}

template <class T>
static void avg_pool_backward(const T* dy, T* dx, const Geometry& g, Index first, Index last) {
  const Index channels = g.channels, pixels = g.height * g.width,
              outputs = g.out_height * g.out_width;
  const T share = static_cast<T>(1.0 / static_cast<double>(g.kernel_h * g.kernel_w));
  for (Index n = first; n < last; ++n) {
    T* image = dx + n * pixels * channels;
    for (Index i = 0; i < pixels * channels; ++i) image[i] = T(0);
    for (Index o = 0; o < outputs; ++o) {
      const T* __restrict from = dy + (n * outputs + o) * channels;
      for_window(
          g, o / g.out_width,
          o % g.out_width, [&](Index, Index pixel) __attribute__((always_inline)) {
            T* __restrict to = image + pixel * channels;
            STARLING_LOOP for (Index c = 0; c < channels; ++c) to[c] += share * from[c];
          });
    }
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.max_pool_forward = max_pool_forward<T>;
  table.max_pool_backward = max_pool_backward<T>;
  table.avg_pool_forward = avg_pool_forward<T>;
  table.avg_pool_backward = avg_pool_backward<T>;
}

}  // namespace

void add_pool(AllKernels& all) { set(all.fp32), set(all.fp64); }

}  // namespace starling::cpu::STARLING_ISA
