#include "kernels/cpu/kernels.h"

// The gradient of the filters of convolutions of every channel alone. A block of channels is taken
// at a time. Its rows are copied between columns of zeros, as many as a window has, so that no
// column needs a check and what is read lies close together; the sums of neighbouring taps then
// gather in registers.

namespace starling::cpu::STARLING_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorsOf {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
  static constexpr int kLanes = kVectorBytes / sizeof(T);
};

template <class T>
static inline typename VectorsOf<T>::Vector load(const T* from) {
  return *reinterpret_cast<const typename VectorsOf<T>::Unaligned*>(from);
}
template <class T>
static inline void store(T* to, typename VectorsOf<T>::Vector value) {
  *reinterpret_cast<typename VectorsOf<T>::Unaligned*>(to) = value;
}

/// A ring of an image's rows in a block of channels, each kDepthwiseBlock numbers a pixel between
/// columns of zeros.
template <class T>
struct Lines {
  T* memory;
  Index slots, columns;  ///< rows at a time, and pixels of each, zeros included
  Index zeros;           ///< columns in front
  /// Of the image's rows; of the block, the rest of a pixel being zeros
  Index width, channels, count;
  Index next = 0;  ///< the first row that has not been copied

  T* line(Index row) const { return memory + row % slots * columns * kDepthwiseBlock; }

  /// Begins an image, before its first row.
  void begin() {
    next = 0;
    for (Index s = 0; s < slots; ++s) {
      T* to = memory + s * columns * kDepthwiseBlock;
      const Index behind = zeros + width < columns ? zeros + width : columns;
      if (count < kDepthwiseBlock) {
        for (Index i = 0; i < columns * kDepthwiseBlock; ++i) to[i] = T(0);
      } else {
        for (Index i = 0; i < zeros * kDepthwiseBlock; ++i) to[i] = T(0);
        for (Index i = behind * kDepthwiseBlock; i < columns * kDepthwiseBlock; ++i) to[i] = T(0);
      }
    }
  }
  /// Copies the rows first … last that are not there. `image`: its first pixel's first channel of
  /// the block.
  void need(const T* image, Index first, Index last) {
    if (next < first) next = first;
    for (; next <= last; ++next) {
      T* __restrict to = line(next) + zeros * kDepthwiseBlock;
      const T* __restrict from = image + next * width * channels;
      const Index pixels = zeros + width < columns ? width : columns - zeros;
      if (count == kDepthwiseBlock) {
        for (Index w = 0; w < pixels; ++w) {
          STARLING_LOOP for (Index c = 0; c < kDepthwiseBlock; ++c) to[w * kDepthwiseBlock + c] =
              from[w * channels + c];
        }
      } else {
        for (Index w = 0; w < pixels; ++w) {
          STARLING_LOOP for (Index c = 0; c < count; ++c) to[w * kDepthwiseBlock + c] =
              from[w * channels + c];
        }
      }
    }
  }
};

/// Adds a row of dy times what its windows' taps read: kRows rows of the filter from `rows`, kTaps
/// neighbouring taps in each. Sums of one row gather in registers and continue from there.
template <class T, int kRows, int kTaps>
static void gather(const T* const* rows, T* const* sums, const T* dy, Index dy_step, Index outputs,
                   Index x_step, Index channels) {
  using V = VectorsOf<T>;
  for (Index c = 0; c < channels; c += V::kLanes) {
    typename V::Vector sum[kRows][kTaps] = {};
    const T* x[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) x[r] = rows[r] + c;
    const T* d = dy + c;
    for (Index q = 0; q < outputs; ++q, d += dy_step) {
      const typename V::Vector gradient = load(d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < kTaps; ++t) sum[r][t] += gradient * load(x[r] + t * kDepthwiseBlock);
        x[r] += x_step;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) {
        T* to = sums[r] + t * kDepthwiseBlock + c;
        store(to, load(to) + sum[r][t]);
      }
    }
  }
}

template <class T>
static void gather_rows(const Geometry& g, const T* const* rows, T* const* sums, int count,
                        const T* dy, Index dy_step, Index channels) {
  const Index outputs = g.out_width, step = g.stride_w * kDepthwiseBlock;
  int r = 0;
  if (g.dilation_w == 1 && g.kernel_w == 3) {
    for (; r + 3 <= count; r += 3)
      gather<T, 3, 3>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
    for (; r < count; ++r)
      gather<T, 1, 3>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
  } else if (g.dilation_w == 1 && g.kernel_w == 5) {
    for (; r + 2 <= count; r += 2)
      gather<T, 2, 5>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
    for (; r < count; ++r)
      gather<T, 1, 5>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
  } else if (g.dilation_w == 1 && g.kernel_w == 7) {
    if constexpr (kVectorBytes == 64) {  // with as many registers
      for (; r + 2 <= count; r += 2)
        gather<T, 2, 7>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
    }
    for (; r < count; ++r)
      gather<T, 1, 7>(rows + r, sums + r, dy, dy_step, outputs, step, channels);
  } else {
    for (; r < count; ++r) {
      for (Index kw = 0; kw < g.kernel_w; ++kw) {
        const T* row = rows[r] + kw * g.dilation_w * kDepthwiseBlock;
        T* sum = sums[r] + kw * kDepthwiseBlock;
        gather<T, 1, 1>(&row, &sum, dy, dy_step, outputs, step, channels);
      }
    }
  }
}

template <class T>
static void backward_weights(const Geometry& g, const T* x, const T* dy, T* sums, Index first,
                             Index last, Index channel, T* scratch) {
  const Index left = g.channels - channel, count = left < kDepthwiseBlock ? left : kDepthwiseBlock,
              taps = g.kernel_h * g.kernel_w;
  Lines<T> lines{.memory = scratch,
                 .slots = depthwise_rows(g),
                 .columns = depthwise_columns(g),
                 .zeros = g.pad_w,
                 .width = g.width,
                 .channels = g.channels,
                 .count = count};
  // Lines of a block that is not full.
  T* dy_line = scratch + lines.slots * lines.columns * kDepthwiseBlock;
  for (Index i = 0; i < g.out_width * kDepthwiseBlock; ++i) dy_line[i] = T(0);
  for (Index i = 0; i < taps * kDepthwiseBlock; ++i) sums[i] = T(0);
  const T* rows[kDepthwiseTaps];
  T* to[kDepthwiseTaps];
  for (Index n = first; n < last; ++n) {
    lines.begin();
    const T* from = x + n * g.height * g.width * g.channels + channel;
    for (Index p = 0; p < g.out_height; ++p) {
      const Index top = p * g.stride_h - g.pad_h, bottom = top + (g.kernel_h - 1) * g.dilation_h;
      lines.need(from, top > 0 ? top : 0, bottom < g.height ? bottom : g.height - 1);
      const T* gradient = dy + (n * g.out_height + p) * g.out_width * g.channels + channel;
      Index dy_step = g.channels;
      if (count < kDepthwiseBlock) {
        for (Index q = 0; q < g.out_width; ++q) {
          for (Index c = 0; c < count; ++c)
            dy_line[q * kDepthwiseBlock + c] = gradient[q * g.channels + c];
        }
        gradient = dy_line;
        dy_step = kDepthwiseBlock;
      }
      int valid = 0;
      for (Index kh = 0; kh < g.kernel_h; ++kh) {
        const Index h = top + kh * g.dilation_h;
        if (h < 0 || h >= g.height) continue;
        rows[valid] = lines.line(h);
        to[valid++] = sums + kh * g.kernel_w * kDepthwiseBlock;
      }
      gather_rows(g, rows, to, valid, gradient, dy_step, count);
    }
  }
}

}  // namespace

void add_depthwise(AllKernels& all) {
  all.fp32.depthwise_backward_weights = backward_weights;
  all.fp64.depthwise_backward_weights = backward_weights;
}

}  // namespace starling::cpu::STARLING_ISA
