#include "kernels/cpu/kernels.h"

// Convolutions of every channel alone. A block of channels is taken at a time. Its rows are copied
// between columns of zeros, as many as a window has, so that no column needs a check and what is
// read lies close together; a tile of neighbouring outputs then gathers its sums in registers. Each
// output adds up its taps in the order of the window, whatever the tile: no bit depends on how the
// work is cut.

namespace starling::cpu::STARLING_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTogether = 2;  // vectors of a pixel whose sums gather at once
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kTogether = 1;
#else
constexpr int kVectorBytes = 16, kTogether = 1;
#endif
constexpr int kTile = 8;  // outputs

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
/// The first `count` numbers of a vector, all at most.
template <class T>
static inline void store(T* to, typename VectorsOf<T>::Vector value, Index count) {
  if (count >= VectorsOf<T>::kLanes) {
    *reinterpret_cast<typename VectorsOf<T>::Unaligned*>(to) = value;
  } else {
    for (Index i = 0; i < count; ++i) to[i] = value[i];
  }
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

/// A tap of the window: where output 0 of the row reads, and the filter's numbers.
template <class T>
struct Tap {
  const T* x;
  const T* weight;
};

/// Makes kOutputs neighbouring outputs, from the tap's x + `at` on, kStep numbers apart (0:
/// `step`).
template <class T, int kOutputs, int kStep, int kWide>
static inline void tile(const Tap<T>* taps, int count, Index at, Index step, const T* bias, T* out,
                        Index out_step, Index channels) {
  using V = VectorsOf<T>;
  const Index apart = kStep > 0 ? kStep : step;
  typename V::Vector sum[kOutputs][kWide];
#pragma GCC unroll 4
  for (int v = 0; v < kWide; ++v) {
    const typename V::Vector first = bias ? load(bias + v * V::kLanes) : typename V::Vector{};
#pragma GCC unroll 8
    for (int q = 0; q < kOutputs; ++q) sum[q][v] = first;
  }
  for (int t = 0; t < count; ++t) {
    const T* __restrict x = taps[t].x + at;
    const T* __restrict weight = taps[t].weight;
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      const typename V::Vector w = load(weight + v * V::kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < kOutputs; ++q) sum[q][v] += w * load(x + q * apart + v * V::kLanes);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kOutputs; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v)
      store(out + q * out_step + v * V::kLanes, sum[q][v], channels - v * V::kLanes);
  }
}

/// A row of outputs in a block of `channels`.
template <class T, int kStep>
static void row_of(Tap<T>* taps, int count, Index outputs, Index step, const T* bias, T* out,
                   Index out_step, Index channels) {
  constexpr Index kLanes = VectorsOf<T>::kLanes, kRun = kLanes * kTogether;
  const Index apart = kStep > 0 ? kStep : step;
  for (Index q = 0; q < outputs;) {
    const Index left = outputs - q;
    const int size = left >= kTile ? kTile : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (Index c = 0; c < channels; c += kRun) {
      const Index at = q * apart + c;
      T* to = out + q * out_step + c;
      const T* b = bias ? bias + c : nullptr;
      switch (size) {
        case kTile:
          tile<T, kTile, kStep, kTogether>(taps, count, at, step, b, to, out_step, channels - c);
          break;
        case 4:
          tile<T, 4, kStep, kTogether>(taps, count, at, step, b, to, out_step, channels - c);
          break;
        case 2:
          tile<T, 2, kStep, kTogether>(taps, count, at, step, b, to, out_step, channels - c);
          break;
        default: tile<T, 1, kStep, kTogether>(taps, count, at, step, b, to, out_step, channels - c);
      }
      for (int t = 0; t < count; ++t) taps[t].weight += kRun;
    }
    const Index back = (channels + kRun - 1) / kRun * kRun;
    for (int t = 0; t < count; ++t) taps[t].weight -= back;
    q += size;
  }
}
/// `x_step`: pixels between the windows of neighbouring outputs.
template <class T>
static void row(Tap<T>* taps, int count, Index outputs, Index x_step, const T* bias, T* out,
                Index out_step, Index channels) {
  const Index step = x_step * kDepthwiseBlock;
  if (x_step == 1)
    return row_of<T, kDepthwiseBlock>(taps, count, outputs, step, bias, out, out_step, channels);
  if (x_step == 2)
    return row_of<T, 2 * kDepthwiseBlock>(taps, count, outputs, step, bias, out, out_step,
                                          channels);
  row_of<T, 0>(taps, count, outputs, step, bias, out, out_step, channels);
}

static inline Index block_of(const Geometry& g, Index first_channel) {
  return g.channels - first_channel < kDepthwiseBlock ? g.channels - first_channel
                                                      : kDepthwiseBlock;
}

template <class T>
static void pack(const Geometry& g, const T* weight, T* packed) {
  const Index taps = g.kernel_h * g.kernel_w;
  for (Index c = 0; c < g.channels; c += kDepthwiseBlock) {
    const Index count = block_of(g, c);
    for (Index t = 0; t < taps; ++t, packed += kDepthwiseBlock) {
      for (Index i = 0; i < kDepthwiseBlock; ++i)
        packed[i] = i < count ? weight[(c + i) * taps + t] : T(0);
    }
  }
}

/// The rows of x that windows read, between columns of zeros.
template <class T>
static Lines<T> input_lines(const Geometry& g, T* scratch, Index count) {
  return {.memory = scratch,
          .slots = depthwise_rows(g),
          .columns = (g.out_width - 1) * g.stride_w + (g.kernel_w - 1) * g.dilation_w + 1,
          .zeros = g.pad_w,
          .width = g.width,
          .channels = g.channels,
          .count = count};
}

template <class T>
static void forward(const Geometry& g, const T* x, const T* packed, const T* bias, T* y,
                    Index image, Index first, Index last, Index channel, T* scratch) {
  const Index count = block_of(g, channel);
  Lines<T> lines = input_lines(g, scratch, count);
  lines.begin();
  const T* from = x + image * g.height * g.width * g.channels + channel;
  const T* filter = packed + channel * g.kernel_h * g.kernel_w;
  T bias_block[kDepthwiseBlock] = {};
  for (Index i = 0; bias && i < count; ++i) bias_block[i] = bias[channel + i];
  Tap<T> taps[kDepthwiseTaps];
  for (Index p = first; p < last; ++p) {
    const Index top = p * g.stride_h - g.pad_h;
    const Index bottom = top + (g.kernel_h - 1) * g.dilation_h;
    lines.need(from, top > 0 ? top : 0, bottom < g.height ? bottom : g.height - 1);
    int n = 0;
    for (Index kh = 0; kh < g.kernel_h; ++kh) {
      const Index h = top + kh * g.dilation_h;
      if (h < 0 || h >= g.height) continue;
      for (Index kw = 0; kw < g.kernel_w; ++kw) {
        taps[n++] = {lines.line(h) + kw * g.dilation_w * kDepthwiseBlock,
                     filter + (kh * g.kernel_w + kw) * kDepthwiseBlock};
      }
    }
    T* out = y + ((image * g.out_height + p) * g.out_width) * g.channels + channel;
    row<T>(taps, n, g.out_width, g.stride_w, bias ? bias_block : nullptr, out, g.channels, count);
  }
}

/// Outputs of the row whose window's tap k reads pixel `at` (padding included): at = s·output +
/// k·dilation.
static inline bool reached(Index at, Index stride, Index outputs, Index* output) {
  if (at < 0 || at % stride != 0) return false;
  *output = at / stride;
  return *output < outputs;
}

template <class T>
static void backward_data(const Geometry& g, const T* dy, const T* packed, T* dx, Index image,
                          Index first, Index last, Index channel, T* scratch) {
  const Index count = block_of(g, channel), reach_h = (g.kernel_h - 1) * g.dilation_h,
              reach_w = (g.kernel_w - 1) * g.dilation_w;
  const Index before = reach_w > g.pad_w ? (reach_w - g.pad_w + g.stride_w - 1) / g.stride_w : 0;
  Lines<T> lines{.memory = scratch,
                 .slots = depthwise_rows(g),
                 .columns = before + (g.width - 1 + g.pad_w) / g.stride_w + 1,
                 .zeros = before,
                 .width = g.out_width,
                 .channels = g.channels,
                 .count = count};
  lines.begin();
  const T* from = dy + image * g.out_height * g.out_width * g.channels + channel;
  const T* filter = packed + channel * g.kernel_h * g.kernel_w;
  Tap<T> taps[kDepthwiseTaps];
  for (Index h = first; h < last; ++h) {
    const Index lowest = h + g.pad_h - reach_h, highest = (h + g.pad_h) / g.stride_h;
    lines.need(from, lowest > 0 ? (lowest + g.stride_h - 1) / g.stride_h : 0,
               highest < g.out_height ? highest : g.out_height - 1);
    // Every stride_w-th pixel of the row is reached by the same taps.
    for (Index phase = 0; phase < g.stride_w && phase < g.width; ++phase) {
      int n = 0;
      for (Index kh = 0; kh < g.kernel_h; ++kh) {
        Index p = 0;
        if (!reached(h + g.pad_h - kh * g.dilation_h, g.stride_h, g.out_height, &p)) continue;
        for (Index kw = 0; kw < g.kernel_w; ++kw) {
          // The place is not negative.
          const Index at = phase + g.pad_w - kw * g.dilation_w + before * g.stride_w;
          if (at % g.stride_w != 0) continue;
          taps[n++] = {lines.line(p) + at / g.stride_w * kDepthwiseBlock,
                       filter + (kh * g.kernel_w + kw) * kDepthwiseBlock};
        }
      }
      T* out = dx + ((image * g.height + h) * g.width + phase) * g.channels + channel;
      row<T>(taps, n, (g.width - phase + g.stride_w - 1) / g.stride_w, 1, nullptr, out,
             g.stride_w * g.channels, count);
    }
  }
}

/// Adds a row of dy times what its windows' taps read: kRows rows of the filter from `rows`, kTaps
/// neighbouring taps in each. Sums of one row gather in registers and go on from there.
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
        store(to, load(to) + sum[r][t], V::kLanes);
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
  const Index count = block_of(g, channel), taps = g.kernel_h * g.kernel_w;
  Lines<T> lines = input_lines(g, scratch, count);
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

template <class T>
static void set(Kernels<T>& table) {
  if constexpr (sizeof(T) == 8) {
    table.depthwise_pack = pack<T>;
    table.depthwise_forward = forward<T>;
    table.depthwise_backward_data = backward_data<T>;
  }
  table.depthwise_backward_weights = backward_weights<T>;
}

}  // namespace

void add_depthwise(Kernels<float>& table) { set(table); }
void add_depthwise(Kernels<double>& table) { set(table); }

}  // namespace starling::cpu::STARLING_ISA
