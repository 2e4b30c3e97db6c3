#include "core/operations/attention.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"
#include "kernels/math/rotary.h"

// Attention for every type and size, in tiles of scores (Dao 2023, arXiv 2307.08691). A block has a
// tile of queries and goes over all keys, or a tile of keys and goes over all queries of all heads
// that share them: no sum is shared, so that the same call has the same bits. What it sums up is at
// most kGroup numbers of each place; longer heads take several blocks.
namespace starling::cuda {
namespace {

constexpr int kSide = 16, kAttentionThreads = kSide * kSide;
constexpr int kChunk = 32;  ///< elements per position in shared memory at a time
constexpr Index kGroup = 128;

/// Queries, and keys, of a tile; a thread has kMine of each.
template <class R>
constexpr int kPlaces = sizeof(R) == 8 ? 32 : 64;
template <class R>
constexpr int kMine = kPlaces<R> / kSide;

template <class T>
struct Heads {
  T* data;
  Index sample, head, place;
  STARLING_HD T* at(Index n, Index h) const { return data + n * sample + h * head; }
};
template <class T>
Heads<T> heads(const View& x) {
  return {x.data<T>(), x.stride(0), x.stride(1), x.stride(2)};
}

/// What makes weights of the products of queries and keys.
template <class T>
struct Scores {
  using R = Compute<T>;
  Index count, kv_heads, group, queries, keys, depth;  ///< heads; of queries to one of keys
  const T* mask;
  Index mask_sample, mask_head, mask_query, mask_key;
  bool causal;
  Index window;                   ///< query i sees keys above i - window; 0: any
  const std::int32_t* positions;  ///< of the queries in their documents; null: there are none
  R scale;
  float p;
  R kept;
  std::uint64_t key;
  StepScalar<std::uint64_t> counter;

  /// The first of the keys that query i of sample n sees. It does not fall with i.
  __device__ Index first_key(Index n, Index i) const {
    Index back = window > 0 && window <= i ? window - 1 : i;
    if (positions && i < queries) back = min(back, Index{positions[n * queries + i]});
    return i - back;
  }
  __device__ bool sees(Index i, Index j, Index first) const {
    return i < queries && j < keys && j >= first && !(causal && j > i);
  }
  /// The keys that a tile of queries may see: from the first tile to the end.
  __device__ Index key_begin(Index n, Index query) const {
    return first_key(n, query) / kPlaces<R> * kPlaces<R>;
  }
  __device__ Index key_end(Index query) const {
    return causal ? min(keys, query + kPlaces<R>) : keys;
  }
  /// Whether the queries from here on see any of a tile of keys.
  __device__ bool see(Index n, Index query, Index key) const {
    return first_key(n, query) < key + kPlaces<R>;
  }
  __device__ R score(R product, Index n, Index h, Index i, Index j, Index first) const {
    if (!sees(i, j, first)) return -std::numeric_limits<R>::infinity();
    R result = product * scale;
    if (mask)
      result += widen(mask[n * mask_sample + h * mask_head + i * mask_query + j * mask_key]);
    return result;
  }
  /// 0, or the factor of what a dropout keeps.
  __device__ R factor(Index n, Index h, Index i, Index j) const {
    const Index place = ((n * count + h) * queries + i) * keys + j;
    const bool keep = math::dropout_keeps(key, counter.get(), place, p);
    return keep ? kept : R(0);
  }
};

template <class R>
struct Shared {
  R a[kPlaces<R>][kChunk + 1], b[kPlaces<R>][kChunk + 1];
  R tile[kPlaces<R>][kPlaces<R> + 1];
};

/// Places from `first` on, the numbers from `column` on; zeros outside.
template <class R, class T>
__device__ inline void fetch(const T* from, Index step, Index first, Index places, Index column,
                             Index depth, R (*to)[kChunk + 1]) {
  const int d = static_cast<int>(threadIdx.x) % kChunk;
  for (int t = static_cast<int>(threadIdx.x) / kChunk; t < kPlaces<R>;
       t += kAttentionThreads / kChunk) {
    const bool inside = first + t < places && column + d < depth;
    to[t][d] = inside ? static_cast<R>(widen(from[(first + t) * step + column + d])) : R(0);
  }
}

/// Products of places of a, a thread's being side + r, and of b, which are kSide apart.
template <class R, class T>
__device__ inline void multiply(Shared<R>& shared, const T* a, Index step_a, Index first_a,
                                Index places_a, const T* b, Index step_b, Index first_b,
                                Index places_b, Index depth, R (&sums)[kMine<R>][kMine<R>]) {
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int r = 0; r < kMine<R>; ++r) {
#pragma unroll
    for (int c = 0; c < kMine<R>; ++c) sums[r][c] = R(0);
  }
  for (Index column = 0; column < depth; column += kChunk) {
    fetch<R>(a, step_a, first_a, places_a, column, depth, shared.a);
    fetch<R>(b, step_b, first_b, places_b, column, depth, shared.b);
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < kChunk; ++d) {
      R left[kMine<R>], right[kMine<R>];
#pragma unroll
      for (int r = 0; r < kMine<R>; ++r) {
        left[r] = shared.a[y * kMine<R> + r][d];
        right[r] = shared.b[x + r * kSide][d];
      }
#pragma unroll
      for (int r = 0; r < kMine<R>; ++r) {
#pragma unroll
        for (int c = 0; c < kMine<R>; ++c) sums[r][c] += left[r] * right[c];
      }
    }
    __syncthreads();
  }
}

/// A thread's sums of its places, of numbers kSide apart in each chunk.
template <class R, int kChunks>
struct Sums {
  R v[kChunks][kMine<R>][2];
};

/// sums += the tile, or with kTurned its columns as rows, times places of b from `column` on.
template <bool kTurned, class R, int kChunks, class T>
__device__ inline void gather(Shared<R>& shared, const T* b, Index step, Index first, Index places,
                              Index column, Index depth, Sums<R, kChunks>& sums) {
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    fetch<R>(b, step, first, places, column + chunk * kChunk, depth, shared.b);
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < kPlaces<R>; ++j) {
      const R right[2] = {shared.b[j][x], shared.b[j][x + kSide]};
#pragma unroll
      for (int r = 0; r < kMine<R>; ++r) {
        const R left =
            kTurned ? shared.tile[j][y * kMine<R> + r] : shared.tile[y * kMine<R> + r][j];
        sums.v[chunk][r][0] += left * right[0];
        sums.v[chunk][r][1] += left * right[1];
      }
    }
    __syncthreads();
  }
}

/// Writes sums · factor[place], or zeros where that is 0, to the places from `first` on.
template <class R, int kChunks, class T>
__device__ inline void give(const Sums<R, kChunks>& sums, const R (&factor)[kMine<R>], T* to,
                            Index step, Index first, Index places, Index column, Index depth) {
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int r = 0; r < kMine<R>; ++r) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Index place = first + y * kMine<R> + r, d = column + chunk * kChunk + x + c * kSide;
        if (place < places && d < depth)
          to[place * step + d] =
              narrow<T>(factor[r] == R(0) ? R(0) : sums.v[chunk][r][c] * factor[r]);
      }
    }
  }
}

/// Calls f(place of the tile's queries, of its keys) for those of a thread, one after another: of
/// an unrolled loop over random numbers the compiler makes too much.
template <class R, class F>
__device__ inline void for_own(F f) {
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll 1
  for (int k = 0; k < kMine<R> * kMine<R>; ++k)
    f(ty * kMine<R> + k / kMine<R>, tx + k % kMine<R> * kSide);
}

/// The part of the work that a block has: a tile of places of one head, and numbers from `column`
/// on.
struct Part {
  Index n, h, first, column;
  __device__ Part(Index heads, Index places, Index tile) {
    const Index tiles = (places + tile - 1) / tile, all = blockIdx.x;
    first = all % tiles * tile;
    h = all / tiles % heads;
    n = all / tiles / heads;
    column = Index{blockIdx.y} * kGroup;
  }
};

template <class T, int kChunks>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_forward_kernel(Scores<T> s, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> y,
                             Compute<T>* lse) {
  using R = Compute<T>;
  constexpr int kOwn = kMine<R>;
  constexpr R kNone = -std::numeric_limits<R>::infinity();
  __shared__ Shared<R> shared;
  const Part part(s.count, s.queries, kPlaces<R>);
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
  const T* own_q = q.at(part.n, part.h);
  const T* own_k = k.at(part.n, part.h / s.group);
  const T* own_v = v.at(part.n, part.h / s.group);
  Sums<R, kChunks> sums{};
  R most[kOwn], total[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) most[r] = kNone, total[r] = R(0);
  const Index end = s.key_end(part.first);
  for (Index key = s.key_begin(part.n, part.first); key < end; key += kPlaces<R>) {
    R scores[kOwn][kOwn];
    multiply(shared, own_q, q.place, part.first, s.queries, own_k, k.place, key, s.keys, s.depth,
             scores);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const Index i = part.first + ty * kOwn + r, first = s.first_key(part.n, i);
      R largest = kNone;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        R& score = scores[r][c];
        score = s.score(score, part.n, part.h, i, key + tx + c * kSide, first);
        largest = score > largest ? score : largest;
      }
      largest = warp_reduce<kSide>(largest, [](R a, R b) { return a > b ? a : b; });
      const R now = largest > most[r] ? largest : most[r], base = now == kNone ? R(0) : now,
              faded = math::exponential(most[r] - base);
      most[r] = now;
      R sum = R(0);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const R weight = math::exponential(scores[r][c] - base);
        sum += weight;
        shared.tile[ty * kOwn + r][tx + c * kSide] = weight;
      }
      total[r] = total[r] * faded + warp_reduce<kSide>(sum, Plus{});
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
        sums.v[chunk][r][0] *= faded, sums.v[chunk][r][1] *= faded;
    }
    if (s.p > 0.0f)
      for_own<R>([&](int r, int c) {
        shared.tile[r][c] *= s.factor(part.n, part.h, part.first + r, key + c);
      });
    gather<false>(shared, own_v, v.place, key, s.keys, part.column, s.depth, sums);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const Index i = part.first + ty * kOwn + r;
    if (tx == 0 && part.column == 0 && i < s.queries) {
      lse[(part.n * s.count + part.h) * s.queries + i] =
          total[r] == R(0) ? -kNone : most[r] + math::logarithm(total[r]);
    }
    total[r] = total[r] == R(0) ? R(0) : R(1) / total[r];
  }
  give(sums, total, y.at(part.n, part.h), y.place, part.first, s.queries, part.column, s.depth);
}

/// delta[n,h,t] = Σ y·dy: what softmax's gradient takes from each of a query's slopes. A warp to a
/// query.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_delta_kernel(Index count, Index queries, Index all, Index depth, Heads<T> y,
                           Heads<T> dy, Compute<T>* delta) {
  constexpr int kWarps = kAttentionThreads / kWarp;
  const Index row = Index{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= all) return;
  const Index t = row % queries, h = row / queries % count, n = row / queries / count;
  const T* a = y.at(n, h) + t * y.place;
  const T* b = dy.at(n, h) + t * dy.place;
  Compute<T> sum = 0;
  for (Index d = threadIdx.x % kWarp; d < depth; d += kWarp) sum += widen(a[d]) * widen(b[d]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) delta[row] = sum;
}

template <class T>
struct BackwardArguments {
  Heads<T> q, k, v, dy;
  const Compute<T>* lse;
  const Compute<T>* delta;
};

/// Weights, and gradients of scores, of a tile of queries by keys.
template <class T>
__device__ inline void weights_and_slopes(
    const Scores<T>& s, const BackwardArguments<T>& g, Shared<Compute<T>>& shared, Index n, Index h,
    Index query, Index key, Compute<T> (&weights)[kMine<Compute<T>>][kMine<Compute<T>>],
    Compute<T> (&slopes)[kMine<Compute<T>>][kMine<Compute<T>>]) {
  using R = Compute<T>;
  constexpr int kOwn = kMine<R>;
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
  multiply(shared, g.q.at(n, h), g.q.place, query, s.queries, g.k.at(n, h / s.group), g.k.place,
           key, s.keys, s.depth, weights);
  multiply(shared, g.dy.at(n, h), g.dy.place, query, s.queries, g.v.at(n, h / s.group), g.v.place,
           key, s.keys, s.depth, slopes);
  if (s.p > 0.0f)
    for_own<R>([&](int r, int c) { shared.tile[r][c] = s.factor(n, h, query + r, key + c); });
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const Index i = query + ty * kOwn + r, row = (n * s.count + h) * s.queries + i;
    const bool inside = i < s.queries;
    const Index first = s.first_key(n, i);
    const R lse = inside ? g.lse[row] : R(0), delta = inside ? g.delta[row] : R(0);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const Index j = key + tx + c * kSide;
      const R score = s.score(weights[r][c], n, h, i, j, first),
              factor = s.p > 0.0f ? shared.tile[ty * kOwn + r][tx + c * kSide] : R(1);
      // Zero weights for a query without keys, and beyond the diagonal.
      const bool none = !s.sees(i, j, first) || lse == std::numeric_limits<R>::infinity();
      const R weight = none ? R(0) : math::exponential(score - lse);
      slopes[r][c] = none ? R(0) : weight * (slopes[r][c] * factor - delta) * s.scale;
      weights[r][c] = weight * factor;
    }
  }
}
template <class R>
__device__ inline void put(const R (&from)[kMine<R>][kMine<R>], Shared<R>& shared) {
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int r = 0; r < kMine<R>; ++r) {
#pragma unroll
    for (int c = 0; c < kMine<R>; ++c) shared.tile[ty * kMine<R> + r][tx + c * kSide] = from[r][c];
  }
  __syncthreads();
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_queries_kernel(Scores<T> s, BackwardArguments<T> g, Heads<T> dq) {
  using R = Compute<T>;
  constexpr int kOwn = kMine<R>;
  __shared__ Shared<R> shared;
  const Part part(s.count, s.queries, kPlaces<R>);
  Sums<R, kChunks> sums{};
  const Index end = s.key_end(part.first);
  for (Index key = s.key_begin(part.n, part.first); key < end; key += kPlaces<R>) {
    R weights[kOwn][kOwn], slopes[kOwn][kOwn];
    weights_and_slopes(s, g, shared, part.n, part.h, part.first, key, weights, slopes);
    put(slopes, shared);
    gather<false>(shared, g.k.at(part.n, part.h / s.group), g.k.place, key, s.keys, part.column,
                  s.depth, sums);
  }
  R one[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) one[r] = R(1);
  give(sums, one, dq.at(part.n, part.h), dq.place, part.first, s.queries, part.column, s.depth);
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_keys_kernel(Scores<T> s, BackwardArguments<T> g, Heads<T> dk, Heads<T> dv) {
  using R = Compute<T>;
  constexpr int kOwn = kMine<R>;
  __shared__ Shared<R> shared;
  const Part part(s.kv_heads, s.keys, kPlaces<R>);
  Sums<R, kChunks> keys{}, values{};
  for (Index h = part.h * s.group; h < (part.h + 1) * s.group; ++h) {
    for (Index query = s.causal ? part.first : 0;
         query < s.queries && s.see(part.n, query, part.first); query += kPlaces<R>) {
      R weights[kOwn][kOwn], slopes[kOwn][kOwn];
      weights_and_slopes(s, g, shared, part.n, h, query, part.first, weights, slopes);
      put(weights, shared);
      gather<true>(shared, g.dy.at(part.n, h), g.dy.place, query, s.queries, part.column, s.depth,
                   values);
      put(slopes, shared);
      gather<true>(shared, g.q.at(part.n, h), g.q.place, query, s.queries, part.column, s.depth,
                   keys);
    }
  }
  R one[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) one[r] = R(1);
  give(keys, one, dk.at(part.n, part.h), dk.place, part.first, s.keys, part.column, s.depth);
  give(values, one, dv.at(part.n, part.h), dv.place, part.first, s.keys, part.column, s.depth);
}

StepScalar<std::uint64_t> counter_of(CudaBackend& backend, const Attention& args) {
  return backend.step_scalar<std::uint64_t>(
      args.counter, [at = args.counter](const StepValues& now, const StepValues& then) {
        return at - then.dropout_counter + now.dropout_counter;
      });
}

template <class T>
Scores<T> scores_of(CudaBackend& backend, const Attention& args) {
  const Shape &q = args.q.shape(), &k = args.k.shape();
  const View& mask = args.mask;
  return {q[1],
          k[1],
          q[1] / k[1],
          q[2],
          k[2],
          q[3],
          mask ? mask.data<T>() : nullptr,
          mask ? mask.stride(0) : 0,
          mask ? mask.stride(1) : 0,
          mask ? mask.stride(2) : 0,
          mask ? mask.stride(3) : 0,
          args.causal,
          args.window,
          args.positions ? args.positions.data<std::int32_t>() : nullptr,
          static_cast<Compute<T>>(args.scale),
          static_cast<float>(args.p),
          static_cast<Compute<T>>(args.p < 1.0 ? 1.0 / (1.0 - args.p) : 0.0),
          args.key,
          counter_of(backend, args)};
}

/// Calls run.template operator()<kChunks>() with the chunks of a place that a block has.
template <class Run>
void with_chunks(Index depth, const Run& run) {
  if (depth <= 2 * kChunk) return run.template operator()<2>();
  run.template operator()<4>();
}

template <class R>
Launch grid_of(const CudaBackend& backend, Index heads, Index places, Index depth) {
  const Index tiles = (places + kPlaces<R> - 1) / kPlaces<R>;
  return {.grid = {static_cast<unsigned>(tiles * heads),
                   static_cast<unsigned>((depth + kGroup - 1) / kGroup)},
          .block = {kAttentionThreads},
          .stream = backend.handle()};
}

constexpr int kRotaryRows = kThreads / kWarp;

/// A thread handles pairs threadIdx.x + k·32 of all its rows, so that it computes their frequencies
/// once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(const T* x, T* y, const std::int32_t* positions, Index begin, Index count,
                  Index repeat, Index rows, Index half, bool interleaved, bool inverse,
                  RotaryFrequencies frequencies) {
  using R = Compute<T>;
  for (Index i = threadIdx.x; i < half; i += kWarp) {
    const double frequency = math::rotary_frequency(frequencies, i, 2 * half);
    const Index first = interleaved ? 2 * i : i, apart = interleaved ? 1 : half;
    for (Index row = Index{blockIdx.x} * kRotaryRows + threadIdx.y; row < rows;
         row += Index{gridDim.x} * kRotaryRows) {
      const Index place = row / repeat % count;
      const math::Turn<R> turn = math::rotary_turn<R>(
          positions ? Index{positions[place]} : begin + place, frequency, inverse);
      const Index at = row * 2 * half + first;
      const R a = widen(x[at]), b = widen(x[at + apart]);
      y[at] = narrow<T>(a * turn.cos - b * turn.sin);
      y[at + apart] = narrow<T>(b * turn.cos + a * turn.sin);
    }
  }
}

}  // namespace

void plain_attention_forward(CudaBackend& backend, const AttentionForward& args) {
  if (args.q.elements() == 0) return;
  const Shape& q = args.q.shape();
  floating(args.q.tensor(), [&](auto type) {
    using T = decltype(type);
    const Launch how = grid_of<Compute<T>>(backend, q[0] * q[1], q[2], q[3]);
    with_chunks(q[3], [&]<int kChunks>() {
      launch(attention_forward_kernel<T, kChunks>, how, scores_of<T>(backend, args),
             heads<T>(args.q), heads<T>(args.k), heads<T>(args.v), heads<T>(args.y),
             args.lse.data<Compute<T>>());
    });
  });
}

void plain_attention_backward(CudaBackend& backend, const AttentionBackward& args) {
  const Shape &q = args.q.shape(), &k = args.k.shape();
  const Index all = q[0] * q[1] * q[2];
  floating(args.q.tensor(), [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Scores<T> scores = scores_of<T>(backend, args);
    const Tensor delta = backend.scratch(all, DTypeOf<R>::value);
    const BackwardArguments<T> given{heads<T>(args.q),  heads<T>(args.k),   heads<T>(args.v),
                                     heads<T>(args.dy), args.lse.data<R>(), delta.data<R>()};
    if (all > 0) {
      launch(attention_delta_kernel<T>,
             {.grid = {blocks_for(all, kAttentionThreads / kWarp)},
              .block = {kAttentionThreads},
              .stream = backend.handle()},
             q[1], q[2], all, q[3], heads<T>(args.y), heads<T>(args.dy), delta.data<R>());
    }
    with_chunks(q[3], [&]<int kChunks>() {
      if (all > 0)
        launch(attention_queries_kernel<T, kChunks>, grid_of<R>(backend, q[0] * q[1], q[2], q[3]),
               scores, given, heads<T>(args.dq));
      if (args.k.elements() > 0)
        launch(attention_keys_kernel<T, kChunks>, grid_of<R>(backend, k[0] * k[1], k[2], k[3]),
               scores, given, heads<T>(args.dk), heads<T>(args.dv));
    });
  });
}

void CudaBackend::issue(const Rotary& args) {
  const Index half = args.x.shape().back() / 2, rows = args.x.elements() / (2 * half);
  if (rows == 0) return;
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    launch(rotary_kernel<T>,
           {.grid = {blocks_for(rows, kRotaryRows, 1, 4096)},
            .block = {kWarp, kRotaryRows},
            .stream = handle()},
           args.x.data<T>(), args.y.data<T>(),
           args.positions ? args.positions.data<std::int32_t>() : nullptr, args.first,
           args.places(), args.repeat, rows, half, args.interleaved, args.inverse,
           args.frequencies);
  });
}

}  // namespace starling::cuda
