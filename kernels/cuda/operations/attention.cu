#include "core/operations/attention.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/step_scalar.h"
#include "kernels/cuda/operations/attention_block.h"
#include "kernels/cuda/operations/plain.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"
#include "kernels/math/rotary.h"

// Attention for every type and size, in tiles of scores (Dao 2023, arXiv 2307.08691). A block has a
// tile of rows, which are queries or keys, and goes over all places of the other side that they
// meet; over keys' rows, of all heads that share them. No sum is shared, so that the same call has
// the same bits. What it sums up is at most 128 numbers of each place; longer heads take several
// blocks. How it multiplies: attention_block.h.
namespace starling::cuda {
namespace {

constexpr int kDeltaThreads = 256;

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

  /// Queries or keys, or their gradients or values, of query head h of sample n.
  __device__ HeadPlaces<T> side_of_queries(const AttentionHeads<T>& x, int n, int h) const {
    return {x.at(n, h), x.place, static_cast<int>(queries)};
  }
  __device__ HeadPlaces<T> side_of_keys(const AttentionHeads<T>& x, int n, int h) const {
    return {x.at(n, h / group), x.place, static_cast<int>(keys)};
  }
  /// The first of the keys that query i of sample n sees. It does not fall with i.
  __device__ Index first_key(Index n, Index i) const {
    Index back = window > 0 && window <= i ? window - 1 : i;
    if (positions && i < queries) back = min(back, Index{positions[n * queries + i]});
    return i - back;
  }
  __device__ bool sees(Index i, Index j, Index first) const {
    return i < queries && j < keys && j >= first && !(causal && j > i);
  }
  /// The keys that queries may see, in tiles of kKeys: from the first tile to the end.
  template <int kKeys>
  __device__ int key_begin(int n, int query) const {
    return static_cast<int>(first_key(n, query)) / kKeys * kKeys;
  }
  __device__ int key_end(int query, int count) const {
    return static_cast<int>(causal ? min(keys, Index{query} + count) : keys);
  }
  /// Whether the queries from here on see any of these keys.
  __device__ bool see(int n, int query, int key, int count) const {
    return query < queries && first_key(n, query) < key + count;
  }
  /// Whether each of these queries sees each of these keys, and no mask is added.
  __device__ bool all_see(int n, int query, int of_queries, int key, int of_keys) const {
    return !mask && query + of_queries <= queries && key + of_keys <= keys &&
           !(causal && key + of_keys > query + 1) && first_key(n, query + of_queries - 1) <= key;
  }
  __device__ R score(R product, Index n, Index h, Index i, Index j) const {
    if (!sees(i, j, first_key(n, i))) return -std::numeric_limits<R>::infinity();
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

__device__ inline float power_of_e(float x) { return ::expf(x); }
__device__ inline double power_of_e(double x) { return ::exp(x); }

/// A tile of queries, and one of keys, whose threads have two kinds of sums.
template <class T, int kTx>
using QueryBlock = AttentionBlock<T, kTx, 8, (sizeof(Compute<T>) == 8 ? 32 : 64) / kTx>;
template <class T, int kTx>
using KeyBlock =
    std::conditional_t<kTx == 8, AttentionBlock<T, kTx, 8, 4, 2>, AttentionBlock<T, kTx, 4, 8>>;

/// Two blocks of 128 threads, or one of 256, have all registers of a multiprocessor.
template <int kTx>
constexpr int kResident = kTx == 8 ? 2 : 1;

template <class T, int kTx>
__global__ void __launch_bounds__(kTx* kAttentionRows, kResident<kTx>)
    attention_forward_kernel(Scores<T> s, AttentionHeads<T> q, AttentionHeads<T> k,
                             AttentionHeads<T> v, AttentionHeads<T> y, Compute<T>* lse,
                             bool aligned) {
  using R = Compute<T>;
  using B = QueryBlock<T, kTx>;
  constexpr R kNone = -std::numeric_limits<R>::infinity();
  B block(static_cast<int>(s.depth), aligned);
  const AttentionPart<B> part(s.count, s.queries, true);
  const HeadPlaces<T> own_q = s.side_of_queries(q, part.n, part.h),
                      own_k = s.side_of_keys(k, part.n, part.h),
                      own_v = s.side_of_keys(v, part.n, part.h);
  typename B::Sums sums{};
  R most[B::kMine], total[B::kMine];
#pragma unroll
  for (int r = 0; r < B::kMine; ++r) most[r] = kNone, total[r] = R(0);
  int key = s.template key_begin<B::kOthers>(part.n, part.first);
  const int end = s.key_end(part.first, B::kRows);
  if (key < end) block.start_product(own_q, part.first, own_k, key);
#pragma unroll 1
  for (; key < end; key += B::kOthers) {
    typename B::Scores scores;
    block.product(scores, own_q, part.first, own_k, key,
                  [&] { block.start_gather(own_v, key, part.column); });
    if (s.all_see(part.n, part.first, B::kRows, key, B::kOthers)) {
      B::each(scores, [&](int, int, R& x) { x *= s.scale; });
    } else {
      block.put(scores);
      block.for_own([&](int row, int other, R& x) {
        x = s.score(x, part.n, part.h, part.first + row, key + other);
      });
      block.take(scores);
    }
#pragma unroll
    for (int r = 0; r < B::kMine; ++r) {
      R largest = most[r];
#pragma unroll
      for (int c = 0; c < B::kOthers / kTx; ++c)
        largest = scores[r][c] > largest ? scores[r][c] : largest;
      largest = warp_reduce<kTx>(largest, [](R a, R b) { return a > b ? a : b; });
      const R base = largest == kNone ? R(0) : largest, faded = power_of_e(most[r] - base);
      most[r] = largest;
      R sum = R(0);
#pragma unroll
      for (int c = 0; c < B::kOthers / kTx; ++c) {
        scores[r][c] = power_of_e(scores[r][c] - base);
        sum += scores[r][c];
      }
      total[r] = total[r] * faded + sum;
#pragma unroll
      for (int i = 0; i < B::kColumnsOwn; ++i) sums[r][i] *= faded;
    }
    block.put(scores);
    if (s.p > 0.0f)
      block.for_own([&](int row, int other, R& x) {
        x *= s.factor(part.n, part.h, part.first + row, key + other);
      });
    block.gather(sums, own_v, key, part.column, [&] {
      if (key + B::kOthers < end) block.start_product(own_q, part.first, own_k, key + B::kOthers);
    });
  }
#pragma unroll
  for (int r = 0; r < B::kMine; ++r) {
    const Index i = part.first + block.row(r);
    total[r] = warp_reduce<kTx>(total[r], Plus{});
    if (block.tx == 0 && part.column == 0 && i < s.queries) {
      lse[(part.n * s.count + part.h) * s.queries + i] =
          total[r] == R(0) ? -kNone : most[r] + math::logarithm(total[r]);
    }
    total[r] = total[r] == R(0) ? R(0) : R(1) / total[r];
  }
  block.give(sums, total, y, part.n, part.h, part.first, s.queries, part.column);
}

/// delta[n,h,t] = Σ y·dy: what softmax's gradient takes from each of a query's slopes. A warp to a
/// query.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads, 1)
    attention_delta_kernel(Index count, Index queries, Index all, Index depth, AttentionHeads<T> y,
                           AttentionHeads<T> dy, Compute<T>* delta) {
  constexpr int kWarps = kDeltaThreads / kWarp;
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
  AttentionHeads<T> q, k, v, dy;
  const Compute<T>* lse;
  const Compute<T>* delta;
  bool aligned;
  /// Query i's number of `lse` or `delta`.
  __device__ Compute<T> of(const Compute<T>* x, const Scores<T>& s, Index n, Index h,
                           Index i) const {
    return i < s.queries ? x[(n * s.count + h) * s.queries + i] : Compute<T>(0);
  }
};

struct QueryAndKey {
  int query, key;
};

/// Makes weights of the products x of queries and keys of one head, in a block's tile: negative
/// ones where a dropout drops them, -infinity for a query without keys or a key that it does not
/// see. index(row, other): a place's query and key.
template <class T, class B, class Lse, class Index2>
__device__ __forceinline__ void put_weights(const Scores<T>& s, const BackwardArguments<T>& g,
                                            int n, int h, const B& block, bool all_see,
                                            typename B::Scores& x, const Lse& lse_of,
                                            const Index2& index) {
  using R = Compute<T>;
  if (all_see) B::each(x, [&](int r, int c, R& v) { v = power_of_e(v * s.scale - lse_of(r, c)); });
  block.put(x);
  if (all_see && !(s.p > 0.0f)) return;
  block.for_own([&](int row, int other, R& v) {
    const auto [i, j] = index(row, other);
    if (!all_see) {
      constexpr R kInfinity = std::numeric_limits<R>::infinity();
      const R sum = g.of(g.lse, s, n, h, i);
      if (sum == kInfinity || !s.sees(i, j, s.first_key(n, i))) {
        v = -kInfinity;
        return;
      }
      v = power_of_e(s.score(v, n, h, i, j) - sum);
    }
    if (s.p > 0.0f && s.factor(n, h, i, j) == R(0)) v = -v;
  });
}
/// The gradient of a score, of a weight as put_weights() leaves it.
template <class T>
__device__ __forceinline__ Compute<T> slope(const Scores<T>& s, Compute<T> weight,
                                            Compute<T> product, Compute<T> delta) {
  using R = Compute<T>;
  const R kept = weight < R(0) ? R(0) : product * s.kept;
  return weight == -std::numeric_limits<R>::infinity()
             ? R(0)
             : math::absolute(weight) * (kept - delta) * s.scale;
}

template <class T, int kTx>
__global__ void __launch_bounds__(kTx* kAttentionRows, kResident<kTx>)
    attention_queries_kernel(Scores<T> s, BackwardArguments<T> g, AttentionHeads<T> dq) {
  using R = Compute<T>;
  using B = QueryBlock<T, kTx>;
  B block(static_cast<int>(s.depth), g.aligned);
  const AttentionPart<B> part(s.count, s.queries, true);
  const int n = part.n, h = part.h;
  const HeadPlaces<T> q = s.side_of_queries(g.q, n, h), dy = s.side_of_queries(g.dy, n, h),
                      k = s.side_of_keys(g.k, n, h), v = s.side_of_keys(g.v, n, h);
  typename B::Sums sums{};
  int key = s.template key_begin<B::kOthers>(n, part.first);
  const int end = s.key_end(part.first, B::kRows);
  if (key < end) block.start_product(q, part.first, k, key);
#pragma unroll 1
  for (; key < end; key += B::kOthers) {
    typename B::Scores x;
    block.product(x, q, part.first, k, key, [&] { block.start_product(dy, part.first, v, key); });
    put_weights(
        s, g, n, h, block, s.all_see(n, part.first, B::kRows, key, B::kOthers), x,
        [&](int r, int) { return g.of(g.lse, s, n, h, part.first + block.row(r)); },
        [&](int row, int other) {
          return QueryAndKey{part.first + row, key + other};
        });
    block.product(x, dy, part.first, v, key, [&] { block.start_gather(k, key, part.column); });
    R delta[B::kMine];
#pragma unroll
    for (int r = 0; r < B::kMine; ++r) delta[r] = g.of(g.delta, s, n, h, part.first + block.row(r));
    B::each(x, [&](int r, int c, R& p) { p = slope(s, block.at(r, c), p, delta[r]); });
    block.put(x);
    block.gather(sums, k, key, part.column, [&] {
      if (key + B::kOthers < end) block.start_product(q, part.first, k, key + B::kOthers);
    });
  }
  block.give(sums, dq, n, h, part.first, s.queries, part.column);
}

template <class T, int kTx>
__global__ void __launch_bounds__(kTx* kAttentionRows, kResident<kTx>)
    attention_keys_kernel(Scores<T> s, BackwardArguments<T> g, AttentionHeads<T> dk,
                          AttentionHeads<T> dv) {
  using R = Compute<T>;
  using B = KeyBlock<T, kTx>;
  constexpr int kOwn = B::kOthers / kTx;
  B block(static_cast<int>(s.depth), g.aligned);
  const AttentionPart<B> part(s.kv_heads, s.keys, false);
  const int n = part.n, begin = s.causal ? part.first : 0, group = static_cast<int>(s.group);
  int h = part.h * group, query = begin;
  const HeadPlaces<T> k = s.side_of_keys(g.k, n, h), v = s.side_of_keys(g.v, n, h);
  typename B::Sums keys{}, values{};
  bool more = s.see(n, begin, part.first, B::kRows);
  if (more) block.start_product(k, part.first, s.side_of_queries(g.q, n, h), query);
#pragma unroll 1
  while (more) {
    const HeadPlaces<T> q = s.side_of_queries(g.q, n, h), dy = s.side_of_queries(g.dy, n, h);
    typename B::Scores x;
    block.product(x, k, part.first, q, query,
                  [&] { block.start_product(v, part.first, dy, query); });
    put_weights(
        s, g, n, h, block, s.all_see(n, query, B::kOthers, part.first, B::kRows), x,
        [&](int, int c) { return g.of(g.lse, s, n, h, query + block.other(c)); },
        [&](int row, int other) {
          return QueryAndKey{query + other, part.first + row};
        });
    block.product(x, v, part.first, dy, query, [&] { block.start_gather(dy, query, part.column); });
    R delta[kOwn];
#pragma unroll
    for (int c = 0; c < kOwn; ++c) delta[c] = g.of(g.delta, s, n, h, query + block.other(c));
    B::each(x, [&](int r, int c, R& p) {
      R& weight = block.at(r, c);
      p = slope(s, weight, p, delta[c]);
      weight = weight > R(0) ? weight * s.kept : weight == weight ? R(0) : weight;  // NaN stays
    });
    constexpr bool kApart = kTx == 8;  // registers of longer rows hold the slopes meanwhile
    if constexpr (kApart) block.put(x, 1);
    block.template gather<true>(values, dy, query, part.column,
                                [&] { block.start_gather(q, query, part.column); });
    if constexpr (!kApart) block.put(x);
    const int place = query;
    query += B::kOthers;
    if (!s.see(n, query, part.first, B::kRows)) ++h, query = begin;
    more = h < (part.h + 1) * group;
    block.gather(keys, q, place, part.column, [&] {
      if (more) block.start_product(k, part.first, s.side_of_queries(g.q, n, h), query);
    });
  }
  block.give(keys, dk, n, part.h, part.first, s.keys, part.column);
  block.give(values, dv, n, part.h, part.first, s.keys, part.column);
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

/// Calls run.template operator()<kTx>(): a block has the sums of up to 8 · kTx numbers of a place.
template <class Run>
void with_width(Index depth, const Run& run) {
  if (depth <= 64) return run.template operator()<8>();
  run.template operator()<16>();
}

template <class B>
Launch grid_of(const CudaBackend& backend, Index heads, Index places, Index depth) {
  const Index tiles = (places + B::kRows - 1) / B::kRows;
  return {.grid = {static_cast<unsigned>(tiles * heads),
                   static_cast<unsigned>((depth + B::kColumns - 1) / B::kColumns)},
          .block = {B::kThreads},
          .stream = backend.handle(),
          .shared_bytes = B::kBytes};
}
/// Whether places of all of these are whole packs.
template <class T, class... Views>
bool packs(const Views&... x) {
  const auto fits = [](const View& v) {
    return packable(v.data<T>()) && v.stride(0) % Pack<T>::kSize == 0 &&
           v.stride(1) % Pack<T>::kSize == 0 && v.stride(2) % Pack<T>::kSize == 0 &&
           v.shape()[3] % Pack<T>::kSize == 0;
  };
  return (fits(x) && ...);
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
    with_width(q[3], [&]<int kTx>() {
      launch(attention_forward_kernel<T, kTx>,
             grid_of<QueryBlock<T, kTx>>(backend, q[0] * q[1], q[2], q[3]),
             scores_of<T>(backend, args), attention_heads<T>(args.q), attention_heads<T>(args.k),
             attention_heads<T>(args.v), attention_heads<T>(args.y), args.lse.data<Compute<T>>(),
             packs<T>(args.q, args.k, args.v));
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
    const BackwardArguments<T> given{attention_heads<T>(args.q),
                                     attention_heads<T>(args.k),
                                     attention_heads<T>(args.v),
                                     attention_heads<T>(args.dy),
                                     args.lse.data<R>(),
                                     delta.data<R>(),
                                     packs<T>(args.q, args.k, args.v, args.dy)};
    if (all > 0) {
      launch(attention_delta_kernel<T>,
             {.grid = {blocks_for(all, kDeltaThreads / kWarp)},
              .block = {kDeltaThreads},
              .stream = backend.handle()},
             q[1], q[2], all, q[3], attention_heads<T>(args.y), attention_heads<T>(args.dy),
             delta.data<R>());
    }
    with_width(q[3], [&]<int kTx>() {
      if (all > 0)
        launch(attention_queries_kernel<T, kTx>,
               grid_of<QueryBlock<T, kTx>>(backend, q[0] * q[1], q[2], q[3]), scores, given,
               attention_heads<T>(args.dq));
      if (args.k.elements() > 0)
        launch(attention_keys_kernel<T, kTx>,
               grid_of<KeyBlock<T, kTx>>(backend, k[0] * k[1], k[2], k[3]), scores, given,
               attention_heads<T>(args.dk), attention_heads<T>(args.dv));
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
