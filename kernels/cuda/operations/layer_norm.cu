#include <cstdint>

#include "core/operations/norms.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/device/row_share.h"

// Layer and RMS normalisation: a warp for each row, which stays in registers between its passes, or
// in the first cache. The gradients of gamma and beta are sums over rows: column_tiles.h. If a row
// fits the registers of a warp, one kernel reads it once for all gradients, and a second adds up
// the sums of the first one's blocks. Longer rows, fp64, odd addresses and frozen parameters take
// two passes.
namespace starling::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

/// Calls f(channel, group) for the lane's groups of `row`.
template <class T, int kSize, class F>
__device__ __forceinline__ void for_groups(const T* row, Index channels, F f) {
  const Index lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 2
  for (Index c = lane * kSize; c < channels; c += kWarp * kSize)
    f(c, load_group<T, kSize>(row + c));
}

/// kSize numbers of a parameter from `channel` on; without one `otherwise`. 16 bytes at once where
/// it begins at whole ones: the lanes of a warp that load one by one each take a line of the cache.
template <int kSize, class C>
__device__ __forceinline__ Group<C, kSize> coefficients(const C* parameter, Index channel,
                                                        C otherwise) {
  constexpr int kPart = kSize * sizeof(C) < 16 ? kSize : 16 / static_cast<int>(sizeof(C));
  Group<C, kSize> result;
  if (parameter != nullptr && reinterpret_cast<std::uintptr_t>(parameter) % 16 == 0) {
#pragma unroll
    for (int j = 0; j < kSize; j += kPart) {
      const auto part = load_group<C, kPart>(parameter + channel + j);
#pragma unroll
      for (int i = 0; i < kPart; ++i) result.v[j + i] = part.v[i];
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      result.v[j] = parameter != nullptr ? parameter[channel + j] : otherwise;
  }
  return result;
}

/// The rows of this warp: first, and how many further on the next is.
struct WarpRows {
  Index first, step;
};
__device__ __forceinline__ WarpRows warp_rows() {
  return {Index{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarp,
          Index{gridDim.x} * kWarps};
}

template <class T>
struct LayerRows {
  const T *x, *residual;  ///< residual is optional
  T *sum, *y;             ///< sum: x + residual, if that is given
  const Compute<T>*gamma, *beta;
  Compute<T>*mean, *inv_std;  ///< optional
};

/// A warp's lanes keep kHeld groups of the row or, with 0, read it for each of the three passes.
template <class T, int kSize, int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld > 4 ? 2 : 3)
    layer_norm_rows(LayerRows<T> to, Index rows, Index channels, bool centered, double eps) {
  using C = Compute<T>;
  using Share = RowShare<T, kSize, kWarp, kHeld>;
  const WarpRows own = warp_rows();
  const C share = C(1) / static_cast<C>(channels);
  for (Index r = own.first; r < rows; r += own.step) {
    Share row(to.x + r * channels, channels);
    const T* residual = to.residual != nullptr ? to.residual + r * channels : nullptr;
    const auto add = [](Group<T, kSize>& g, const Group<T, kSize>& more) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) g.v[j] = narrow<T>(widen(g.v[j]) + widen(more.v[j]));
    };
    if (residual != nullptr) {
      const Share more(residual, channels);
      row.each([&](Index c, int u, Group<T, kSize> g) {
        add(g, more.group(c, u));
        store_group<T, kSize>(to.sum + r * channels + c, g);
        if constexpr (kHeld > 0)
          row.held[u].words = std::bit_cast<typename Coming<T, kSize>::Words>(g);
      });
    }
    const auto each = [&](auto f) {
      row.each([&](Index c, int, Group<T, kSize> g) {
        if constexpr (kHeld == 0)
          if (residual != nullptr) add(g, load_group<T, kSize>(residual + c));
        f(c, g);
      });
    };
    C sum = C(0), squares = C(0);
    if (centered) {
      each([&](Index, const Group<T, kSize>& g) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) sum += widen(g.v[j]);
      });
    }
    const C mean = warp_sum(sum) * share;
    each([&](Index, const Group<T, kSize>& g) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C d = widen(g.v[j]) - mean;
        squares += d * d;
      }
    });
    const C inv = static_cast<C>(1.0 / sqrt(static_cast<double>(warp_sum(squares) * share) + eps));
    each([&](Index c, Group<T, kSize> g) {
      const auto weight = coefficients<kSize>(to.gamma, c, C(1)),
                 bias = coefficients<kSize>(to.beta, c, C(0));
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        g.v[j] = narrow<T>((widen(g.v[j]) - mean) * inv * weight.v[j] + bias.v[j]);
      store_group<T, kSize>(to.y + r * channels + c, g);
    });
    if (threadIdx.x % kWarp == 0) {
      if (to.mean) to.mean[r] = mean;
      if (to.inv_std) to.inv_std[r] = inv;
    }
  }
}

template <class T>
struct LayerGradient {
  const T *x, *dy, *term;                   ///< term is optional
  const Compute<T>*gamma, *mean, *inv_std;  ///< gamma and mean are optional
  __device__ __forceinline__ Compute<T> mean_of(Index row) const {
    return mean ? mean[row] : Compute<T>(0);
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads, 1)
    layer_norm_gradient_rows(LayerGradient<T> from, T* dx, Index rows, Index channels) {
  using C = Compute<T>;
  const WarpRows own = warp_rows();
  const C share = C(1) / static_cast<C>(channels);
  for (Index r = own.first; r < rows; r += own.step) {
    const T* x = from.x + r * channels;
    const C mean = from.mean_of(r), inv = from.inv_std[r];
    C sum_g = C(0), sum_gx = C(0);
    for_groups<T, kSize>(from.dy + r * channels, channels, [&](Index c, const Group<T, kSize>& g) {
      const auto in = load_group<T, kSize>(x + c);
      const auto gamma = coefficients<kSize>(from.gamma, c, C(1));
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C w = static_cast<C>(g.v[j]) * gamma.v[j];
        sum_g += w;
        sum_gx += w * ((static_cast<C>(in.v[j]) - mean) * inv);
      }
    });
    const C mean_g = from.mean ? warp_sum(sum_g) * share : C(0), mean_gx = warp_sum(sum_gx) * share;
    for_groups<T, kSize>(from.dy + r * channels, channels, [&](Index c, Group<T, kSize> g) {
      const auto in = load_group<T, kSize>(x + c);
      const auto gamma = coefficients<kSize>(from.gamma, c, C(1));
      Group<T, kSize> term{};
      if (from.term) term = load_group<T, kSize>(from.term + r * channels + c);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C w = static_cast<C>(g.v[j]) * gamma.v[j],
                normal = (static_cast<C>(in.v[j]) - mean) * inv;
        g.v[j] = static_cast<T>(inv * (w - mean_g - normal * mean_gx) + static_cast<C>(term.v[j]));
      }
      store_group<T, kSize>(dx + r * channels + c, g);
    });
  }
}

template <class C>
struct ParameterGradients {
  C *dgamma, *dbeta;  ///< optional
  bool accumulate;
  STARLING_HD void take(Index c, double sum, double product) const {
    if (dbeta) dbeta[c] = static_cast<C>((accumulate ? static_cast<double>(dbeta[c]) : 0.0) + sum);
    if (dgamma)
      dgamma[c] = static_cast<C>((accumulate ? static_cast<double>(dgamma[c]) : 0.0) + product);
  }
};

/// Sums of dy and of dy·x̂ over all rows; partial[parts][2][channels] and arrivals: last_block.h.
template <class T, int kSize>
__global__ void __launch_bounds__(kColumnThreads, 1)
    layer_norm_gradient_columns(LayerGradient<T> from, ColumnTiles t, Compute<T>* partial,
                                unsigned* arrivals, ParameterGradients<Compute<T>> to) {
  using C = Compute<T>;
  struct Row {
    Coming<T, kSize> x, dy;
    C mean, inv;
  };
  __shared__ __align__(16) unsigned char shared[ColumnSums<C, kSize>::kBytes];
  const auto place = column_place<kSize>(t);
  C sums[2 * kSize] = {};
  for_rows<2>(
      place.count,
      [&](Index r) {
        const Index row = place.first + r * place.step, at = row * t.channels + place.channel;
        return Row{issue_load<kSize>(from.x + at), issue_load<kSize>(from.dy + at),
                   from.mean_of(row), from.inv_std[row]};
      },
      [&](const Row& row, Index) {
        const auto in = row.x.group(), g = row.dy.group();
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const C value = static_cast<C>(g.v[j]);
          sums[j] += value;
          sums[kSize + j] += value * ((static_cast<C>(in.v[j]) - row.mean) * row.inv);
        }
      });
  sum_over_rows<kColumnThreads>(sums, reinterpret_cast<C*>(shared), t.width);
  store_sums<kSize>(sums, partial, t, place);
  if (last_block(arrivals + blockIdx.x, t.parts))
    combine_sums<kSize>(partial, t, shared,
                        [&](Index c, double sum, double product) { to.take(c, sum, product); });
}

/// All gradients of rows that a warp holds in kHeld groups a lane. partial: [blocks][2][channels],
/// the sums of dy and of dy·x̂ over each block's rows.
template <class T, int kSize, int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    layer_norm_gradients(LayerGradient<T> from, T* dx, Index rows, Index channels,
                         Compute<T>* partial) {
  using C = Compute<T>;
  using Share = RowShare<T, kSize, kWarp, kHeld>;
  __shared__ C block_sums[2][kHeld * kWarp * kSize];
  C sums[kHeld][2][kSize] = {};
  const WarpRows own = warp_rows();
  const C share = C(1) / static_cast<C>(channels);
  for (Index r = own.first; r < rows; r += own.step) {
    const Share x(from.x + r * channels, channels), dy(from.dy + r * channels, channels);
    const C mean = from.mean_of(r), inv = from.inv_std[r];
    C sum_g = C(0), sum_gx = C(0);
    x.each([&](Index c, int u, const Group<T, kSize>& in) {
      const auto g = dy.group(c, u);
      const auto gamma = coefficients<kSize>(from.gamma, c, C(1));
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C value = widen(g.v[j]), normal = (widen(in.v[j]) - mean) * inv;
        sums[u][0][j] += value;
        sums[u][1][j] += value * normal;
        sum_g += value * gamma.v[j];
        sum_gx += value * gamma.v[j] * normal;
      }
    });
    const C mean_g = from.mean ? warp_sum(sum_g) * share : C(0), mean_gx = warp_sum(sum_gx) * share;
    x.each([&](Index c, int u, const Group<T, kSize>& in) {
      auto g = dy.group(c, u);
      const auto gamma = coefficients<kSize>(from.gamma, c, C(1));
      Group<T, kSize> term{};
      if (from.term) term = load_group<T, kSize>(from.term + r * channels + c);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C w = widen(g.v[j]) * gamma.v[j], normal = (widen(in.v[j]) - mean) * inv;
        g.v[j] = narrow<T>(inv * (w - mean_g - normal * mean_gx) + widen(term.v[j]));
      }
      store_group<T, kSize>(dx + r * channels + c, g);
    });
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            first = static_cast<int>(threadIdx.x) % kWarp * kSize;
  for (int w = 0; w < kWarps; ++w) {  // in this order
#pragma unroll
    for (int i = 0; i < kHeld * 2 * kSize; ++i) {
      const int u = i / (2 * kSize), k = i / kSize % 2, j = i % kSize;
      C& sum = block_sums[k][first + u * kWarp * kSize + j];
      if (w == warp) sum = w == 0 ? sums[u][k][j] : sum + sums[u][k][j];
    }
    __syncthreads();
  }
  for (Index i = threadIdx.x; i < 2 * channels; i += kThreads)
    partial[blockIdx.x * 2 * channels + i] = block_sums[i >= channels][i % channels];
}

/// The sums over the parts that the blocks of layer_norm_gradients left; a warp's lanes take
/// adjacent channels, the block's warps take turns with the parts.
template <class C>
__global__ void __launch_bounds__(kThreads)
    layer_norm_gradient_parts(const C* partial, Index parts, Index channels,
                              ParameterGradients<C> to) {
  __shared__ double shared[2][kWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index c = Index{blockIdx.x} * kWarp + lane;
  double sum = 0.0, product = 0.0;
  if (c < channels) {
#pragma unroll 8
    for (Index part = warp; part < parts; part += kWarps) {
      sum += static_cast<double>(partial[2 * part * channels + c]);
      product += static_cast<double>(partial[(2 * part + 1) * channels + c]);
    }
  }
  shared[0][warp][lane] = sum;
  shared[1][warp][lane] = product;
  __syncthreads();
  if (warp != 0 || c >= channels) return;
  for (int w = 1; w < kWarps; ++w) {
    sum += shared[0][w][lane];
    product += shared[1][w][lane];
  }
  to.take(c, sum, product);
}

Launch over_warps(Index rows, StreamHandle stream) {
  return {.grid = {blocks_for(rows, kWarps)}, .block = {kThreads}, .stream = stream};
}

template <class T>
void forward(CudaBackend& backend, const LayerNormForward& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index rows = matrix.rows, channels = matrix.channels;
  const LayerRows<T> to{.x = args.x.data<T>(),
                        .residual = optional<T>(args.residual),
                        .sum = optional<T>(args.sum),
                        .y = args.y.data<T>(),
                        .gamma = optional<C>(args.gamma),
                        .beta = optional<C>(args.beta),
                        .mean = optional<C>(args.saved_mean),
                        .inv_std = optional<C>(args.saved_inv_std)};
  if (rows == 0) return;
  const auto whole = [&]<int kSize, int kHeld>() {
    if (kHeld > 0 && channels > kHeld * kWarp * kSize) return false;
    launch(layer_norm_rows<T, kSize, kHeld>, over_warps(rows, backend.handle()), to, rows, channels,
           args.centered, args.eps);
    return true;
  };
  const auto run = [&]<int kSize>() {
    if constexpr (kSize > 1 && sizeof(T) <= 4) {
      if (whole.template operator()<kSize, 4>() || whole.template operator()<kSize, 8>()) return;
    }
    whole.template operator()<kSize, 0>();
  };
  with_packs<T>(channels, run, to.x, to.residual, to.sum, to.y);
}

template <class T>
void backward(CudaBackend& backend, const LayerNormBackward& args) {
  using C = Compute<T>;
  const RowsAndChannels matrix = rows_and_channels(args.x);
  const Index rows = matrix.rows, channels = matrix.channels;
  const LayerGradient<T> from{.x = args.x.data<T>(),
                              .dy = args.dy.data<T>(),
                              .term = optional<T>(args.term),
                              .gamma = optional<C>(args.gamma),
                              .mean = optional<C>(args.saved_mean),
                              .inv_std = args.saved_inv_std.data<C>()};
  T* dx = optional<T>(args.dx);
  C* dgamma = optional<C>(args.dgamma);
  C* dbeta = optional<C>(args.dbeta);
  const ParameterGradients<C> to{dgamma, dbeta, args.accumulate};
  const auto whole = [&]<int kSize, int kHeld>() {
    if (channels > kHeld * kWarp * kSize) return false;
    constexpr auto kGradients = layer_norm_gradients<T, kSize, kHeld>;
    const Index blocks = std::min<Index>(
        (rows + kWarps - 1) / kWarps,
        Index{std::max(backend.info().multiprocessors, 1)} * resident_blocks(kGradients, kThreads));
    const Tensor partial = backend.scratch(2 * blocks * channels, DTypeOf<C>::value);
    launch(kGradients, {{static_cast<unsigned>(blocks)}, {kThreads}, backend.handle()}, from, dx,
           rows, channels, partial.data<C>());
    launch(layer_norm_gradient_parts<C>,
           {{blocks_for(channels, kWarp)}, {kThreads}, backend.handle()}, partial.data<C>(), blocks,
           channels, to);
    return true;
  };
  const auto run = [&]<int kSize>() {
    if constexpr (kSize > 1 && sizeof(T) <= 4) {
      if (dx && rows > 0 && (dgamma || dbeta) &&
          (whole.template operator()<kSize, 4>() || whole.template operator()<kSize, 8>()))
        return;
    }
    if (dgamma || dbeta) {
      constexpr auto kColumns = layer_norm_gradient_columns<T, kSize>;
      const ColumnTiles t = column_tiles(backend, matrix, kSize, kColumns);
      const Tensor partial = partial_sums<C>(backend, t);
      launch(kColumns, over_columns(backend, t), from, t, partial.data<C>(), backend.arrivals(),
             to);
    }
    if (dx && rows > 0)
      launch(layer_norm_gradient_rows<T, kSize>, over_warps(rows, backend.handle()), from, dx, rows,
             channels);
  };
  with_packs<T>(channels, run, from.x, from.dy, from.term, dx);
}

}  // namespace

void CudaBackend::issue(const LayerNormForward& args) {
  floating(args.x, [&](auto type) { forward<decltype(type)>(*this, args); });
}

void CudaBackend::issue(const LayerNormBackward& args) {
  floating(args.x, [&](auto type) { backward<decltype(type)>(*this, args); });
}

}  // namespace starling::cuda
