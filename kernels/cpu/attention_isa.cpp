#include "kernels/cpu/attention.h"
#include "kernels/cpu/pack_isa.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"

// Attention in tiles of scores that stay in the caches (Dao 2023, arXiv 2307.08691): forward,
// queries of a block by all keys; backward, keys of a block by all queries. Products take
// tiles of registers, of one factor's numbers times vectors of the other's. Exponentials are powers
// of 2, whose factor the queries carry. Behind a causal diagonal whole register tiles are left out.

namespace starling::cpu::STARLING_ISA {
namespace {

constexpr Index kBlock = kAttentionBlock;
constexpr int kRows = 6;  ///< of a register tile
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

#if defined(__AVX512F__)
constexpr int kBytes = 64, kMostVectors = 4;
#elif defined(__AVX2__)
constexpr int kBytes = 32, kMostVectors = 2;
#else
constexpr int kBytes = 16, kMostVectors = 2;
#endif

template <class R>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(kBytes)));
  typedef float U __attribute__((vector_size(kBytes), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(kBytes)));
};
template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(kBytes)));
  typedef double U __attribute__((vector_size(kBytes), aligned(8), may_alias));
};
template <class R>
constexpr int kLanes = kBytes / static_cast<int>(sizeof(R));
template <class R>
using VectorOf = typename Lanes<R>::V;

template <class R>
static inline __attribute__((always_inline)) VectorOf<R> load(const R* from) {
  return *reinterpret_cast<const typename Lanes<R>::U*>(from);
}
template <class R>
static inline __attribute__((always_inline)) void store(R* to, VectorOf<R> x) {
  *reinterpret_cast<typename Lanes<R>::U*>(to) = x;
}

/// 2^x within 2 units in the last place for x <= 0 and a little more; 0 below -126, NaN of NaN.
static inline __attribute__((always_inline)) Lanes<float>::V power_of_2(Lanes<float>::V x) {
  using V = Lanes<float>::V;
  using I = Lanes<float>::I;
  const I low = x < -126.0f;
  const V shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
  V p = 1.5403530393381609e-4f * r + 1.3333558146428443e-3f;
  p = p * r + 9.6181291076284772e-3f;
  p = p * r + 5.5504108664821580e-2f;
  p = p * r + 2.4022650695910072e-1f;
  p = p * r + 6.9314718055994531e-1f;
  p = p * r + 1.0f;
  const I power = ((I)shifted + 127) << 23;
  return (V)(~low & (I)(p * (V)power));
}
static inline Lanes<double>::V power_of_2(Lanes<double>::V x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_exp2(x[i]);
  return x;
}
template <class R>
static inline R number_power_of_2(R x) {
  if constexpr (sizeof(R) == 8) {
    return __builtin_exp2(x);
  } else {
    return __builtin_exp2f(x);
  }
}

/// c (+)= a·b of k terms, kRows rows and kVectors vectors; a's number (r, i) is a[r·line + i], or
/// with kTurned a[i·line + r].
template <class R, int kVectors, bool kTurned>
static inline __attribute__((always_inline)) void tile(Index k, const R* a, Index line_a,
                                                       const R* b, Index line_b, R* c, Index line_c,
                                                       bool add) {
  using V = VectorOf<R>;
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = add ? load(c + r * line_c + v * kLanes<R>) : V{};
  }
#pragma GCC unroll 2
  for (Index i = 0; i < k; ++i) {
    V right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + i * line_b + v * kLanes<R>);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const R left = kTurned ? a[i * line_a + r] : a[r * line_a + i];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(c + r * line_c + v * kLanes<R>, sum[r][v]);
  }
}

/// Which of a product's terms or results the diagonal leaves: key j goes with query i where j <= i
/// + shift.
enum class Leaves { kResults, kTermsBefore, kTermsBehind };

/// c (+)= a·b, of `rows` rows rounded up to register tiles and `columns` to vectors.
template <class R, bool kTurned>
static void product(Leaves leaves, Index shift, Index rows, Index columns, Index k, const R* a,
                    Index line_a, const R* b, Index line_b, R* c, Index line_c, bool add) {
  const Index vectors = (columns + kLanes<R> - 1) / kLanes<R>,
              panels = (vectors + kMostVectors - 1) / kMostVectors;
  for (Index panel = 0, v = 0; panel < panels; ++panel) {
    const Index width = (vectors - v + panels - panel - 1) / (panels - panel),
                first = v * kLanes<R>;
    for (Index r = 0; r < rows; r += kRows) {
      Index begin = 0, end = k;
      if (leaves == Leaves::kResults && first >= r + kRows + shift) continue;
      if (leaves == Leaves::kTermsBefore && end > r + kRows + shift) end = r + kRows + shift;
      if (leaves == Leaves::kTermsBehind && r > shift) begin = r - shift;
      if (begin >= end && add) continue;
      const R* left = a + (kTurned ? r + begin * line_a : r * line_a + begin);
      const R* right = b + begin * line_b + first;
      R* to = c + r * line_c + first;
      const Index terms = end - begin;
      switch (width) {
        case 1: tile<R, 1, kTurned>(terms, left, line_a, right, line_b, to, line_c, add); break;
        case 2: tile<R, 2, kTurned>(terms, left, line_a, right, line_b, to, line_c, add); break;
        case 3:
          if constexpr (kMostVectors > 2)
            tile<R, 3, kTurned>(terms, left, line_a, right, line_b, to, line_c, add);
          break;
        default:
          if constexpr (kMostVectors > 2)
            tile<R, 4, kTurned>(terms, left, line_a, right, line_b, to, line_c, add);
      }
    }
    v += width;
  }
}

/// Places as lines of R, times a factor, with zeros behind them up to `padded` lines.
template <class T>
static void take(const T* from, Index step, Index places, Index padded, Index depth, Index line,
                 Compute<T> factor, Compute<T>* to) {
  for (Index t = 0; t < padded; ++t, to += line) {
    const Index n = t < places ? depth : 0;
    const T* x = from + t * step;
    STARLING_LOOP for (Index d = 0; d < n; ++d) to[d] = widen(x[d]) * factor;
    for (Index d = n; d < line; ++d) to[d] = 0;
  }
}
/// Lines of a block turned around: number d of place j at to[d·kBlock + j].
template <class R>
static void turn(const R* from, Index line, Index depth, R* to) {
  for (Index d = 0; d < depth; ++d) {
    for (Index j = 0; j < kBlock; ++j) to[d * kBlock + j] = from[j * line + d];
  }
}
template <class T>
static void give(const Compute<T>* from, Index depth, Compute<T> factor, T* to) {
  if constexpr (kIsLow<T>) {
    constexpr Index kPiece = 256;
    alignas(64) Compute<T> buffer[kPiece];
    for (Index begin = 0; begin < depth; begin += kPiece) {
      const Index n = depth - begin < kPiece ? depth - begin : kPiece;
      STARLING_LOOP for (Index d = 0; d < n; ++d) buffer[d] = from[begin + d] * factor;
      pack(to + begin, buffer, n, false);
    }
  } else {
    STARLING_LOOP for (Index d = 0; d < depth; ++d) to[d] = from[d] * factor;
  }
}

/// The factors of a dropout for n scores from the tensor's element `first` on.
template <class T>
static void dropout_factors(const AttentionCall<T>& g, Index first, Index n, Compute<T>* to) {
  const auto kept = g.p < 1.0 ? static_cast<Compute<T>>(1.0 / (1.0 - g.p)) : Compute<T>(0);
  const Index last = first + n;
  for (Index group = first / 4; group * 4 < last; ++group) {
    const math::DropoutMask mask = math::dropout_mask(
        g.key, g.counter, static_cast<std::uint64_t>(group), static_cast<float>(g.p));
    for (Index j = 0; j < 4; ++j) {
      const Index i = group * 4 + j;
      if (i >= first && i < last) to[i - first] = mask.keep[j] ? kept : Compute<T>(0);
    }
  }
}

/// A tile of scores: queries from `query` on by keys from `key` on.
struct Tile {
  Index n, h, query, key, queries, keys;
  Index shift;  ///< key j of the tile goes with query i where j <= i + shift
  /// Keys that query r goes with.
  STARLING_HD Index of(Index r) const { return r + shift + 1 < keys ? r + shift + 1 : keys; }
  STARLING_HD Index width() const { return (keys + 15) / 16 * 16; }
};
template <class T>
static inline Tile tile_at(const AttentionCall<T>& g, Index n, Index h, Index query, Index key) {
  const auto rest = [](Index all, Index at) { return all - at < kBlock ? all - at : kBlock; };
  constexpr Index kFar = Index{1} << 40;
  return {
      n, h, query, key, rest(g.queries, query), rest(g.keys, key), g.causal ? query - key : kFar};
}
template <class T>
static inline void add_mask(const AttentionCall<T>& g, const Tile& t, Index r, Compute<T>* row) {
  const T* mask = g.mask + t.n * g.mask_sample + t.h * g.mask_head + (t.query + r) * g.mask_query +
                  t.key * g.mask_key;
  for (Index j = 0; j < t.of(r); ++j)
    row[j] += widen(mask[j * g.mask_key]) * static_cast<Compute<T>>(kLog2E);
}
template <class T>
static inline Index score(const AttentionCall<T>& g, const Tile& t, Index r) {
  return ((t.n * g.heads + t.h) * g.queries + t.query + r) * g.keys + t.key;
}
template <class R>
static inline R sum_of(VectorOf<R> x) {
  R sum = 0;
  for (int i = 0; i < kLanes<R>; ++i) sum += x[i];
  return sum;
}

/// Query blocks first … last - 1, counted over samples, heads and blocks.
template <class T>
static void forward(const AttentionCall<T>& g, Index first, Index last, Compute<T>* scratch) {
  using R = Compute<T>;
  using V = VectorOf<R>;
  constexpr R kNone = -__builtin_huge_val();
  const Index line = g.line(), blocks = g.query_blocks();
  R* turned = scratch;
  R* values = turned + g.key_rows() * line;
  R* q = values + g.key_rows() * line;
  R* sums = q + kBlock * line;
  R* scores = sums + kBlock * line;
  R* most = scores + kBlock * kBlock;
  R* total = most + kBlock;
  R* factors = total + kBlock;
  Index packed = -1;  // which keys and values lie there
  for (Index task = first; task < last; ++task) {
    const Index n = task / blocks / g.heads, h = task / blocks % g.heads,
                query = task % blocks * kBlock, kv = h / (g.heads / g.kv_heads);
    if (packed != n * g.kv_heads + kv) {
      packed = n * g.kv_heads + kv;
      for (Index key = 0; key < g.keys; key += kBlock) {
        const Index count = g.keys - key < kBlock ? g.keys - key : kBlock;
        take(g.k.at(n, kv, key), g.k.place, count, kBlock, g.depth, line, R(1), sums);
        turn(sums, line, g.depth, turned + key * line);
        take(g.v.at(n, kv, key), g.v.place, count, count, g.depth, line, R(1), values + key * line);
      }
    }
    Tile t = tile_at(g, n, h, query, 0);
    take(g.q.at(n, h, query), g.q.place, t.queries, (t.queries + kRows - 1) / kRows * kRows,
         g.depth, line, g.scale * static_cast<R>(kLog2E), q);
    for (Index r = 0; r < kBlock; ++r) most[r] = kNone, total[r] = 0;
    for (Index i = 0; i < kBlock * line; ++i) sums[i] = 0;
    for (Index key = 0; key < g.keys && (!g.causal || key < query + t.queries); key += kBlock) {
      t = tile_at(g, n, h, query, key);
      product<R, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, q, line,
                        turned + key * line, kBlock, scores, kBlock, false);
      for (Index r = 0; r < t.queries; ++r) {
        R* row = scores + r * kBlock;
        if (g.mask) add_mask(g, t, r, row);
        for (Index j = t.of(r); j < t.width(); ++j) row[j] = kNone;
        V largest = load(row);
        for (Index j = kLanes<R>; j < t.width(); j += kLanes<R>) {
          const V x = load(row + j);
          largest = x > largest ? x : largest;
        }
        R now = most[r];
        for (int i = 0; i < kLanes<R>; ++i) now = largest[i] > now ? largest[i] : now;
        const R base = now == kNone ? R(0) : now;
        if (now != most[r]) {
          const R faded = number_power_of_2(most[r] - base);
          total[r] *= faded;
          for (Index d = 0; d < line; ++d) sums[r * line + d] *= faded;
          most[r] = now;
        }
        V sum{};
        for (Index j = 0; j < t.width(); j += kLanes<R>) {
          const V e = power_of_2(load(row + j) - base);
          sum += e;
          store(row + j, e);
        }
        total[r] += sum_of<R>(sum);
        if (g.p > 0.0) {
          dropout_factors(g, score(g, t, r), t.keys, factors);
          for (Index j = 0; j < t.keys; ++j) row[j] *= factors[j];
        }
      }
      product<R, false>(Leaves::kTermsBefore, t.shift, t.queries, line, t.keys, scores, kBlock,
                        values + key * line, line, sums, line, true);
    }
    for (Index r = 0; r < t.queries; ++r) {
      const bool none = total[r] == 0;  // it sees no key
      if (none)
        for (Index d = 0; d < g.depth; ++d) sums[r * line + d] = 0;
      give(sums + r * line, g.depth, none ? R(0) : 1 / total[r], g.out.at(n, h, query + r));
      const R logarithm = math::logarithm(total[r]);
      g.lse[(n * g.heads + h) * g.queries + query + r] =
          none ? -kNone : most[r] * static_cast<R>(kLn2) + logarithm;
    }
  }
}

/// All heads of keys and values first … last - 1, counted over samples.
template <class T>
static void backward(const AttentionCall<T>& g, Index first, Index last, Compute<T>* scratch) {
  using R = Compute<T>;
  using V = VectorOf<R>;
  constexpr R kNone = -__builtin_huge_val();
  const Index line = g.line(), group = g.heads / g.kv_heads, rows = g.query_rows();
  R* q = scratch;
  R* dy = q + rows * line;
  R* dq = dy + rows * line;
  R* dk = dq + rows * line;
  R* dv = dk + g.key_rows() * line;
  R* lse = dv + g.key_rows() * line;
  R* delta = lse + rows;
  R* keys = delta + rows;
  R* turned_keys = keys + kBlock * line;
  R* turned_values = turned_keys + kBlock * line;
  R* scores = turned_values + kBlock * line;
  R* slopes = scores + kBlock * kBlock;
  R* factors = slopes + kBlock * kBlock;
  for (Index task = first; task < last; ++task) {
    const Index n = task / g.kv_heads, kv = task % g.kv_heads;
    for (Index i = 0; i < g.key_rows() * line; ++i) dk[i] = dv[i] = 0;
    for (Index h = kv * group; h < (kv + 1) * group; ++h) {
      take(g.q.at(n, h), g.q.place, g.queries, rows, g.depth, line,
           g.scale * static_cast<R>(kLog2E), q);
      take(g.dy.at(n, h), g.dy.place, g.queries, rows, g.depth, line, R(1), dy);
      for (Index i = 0; i < rows * line; ++i) dq[i] = 0;
      for (Index r = 0; r < g.queries; ++r) {
        const T* y = g.y.at(n, h, r);
        R sum = 0;
        for (Index d = 0; d < g.depth; ++d) sum += widen(y[d]) * dy[r * line + d];
        delta[r] = sum;
        lse[r] = g.lse[(n * g.heads + h) * g.queries + r] * static_cast<R>(kLog2E);
      }
      for (Index key = 0; key < g.keys; key += kBlock) {
        const Index count = g.keys - key < kBlock ? g.keys - key : kBlock;
        take(g.v.at(n, kv, key), g.v.place, count, kBlock, g.depth, line, R(1), keys);
        turn(keys, line, g.depth, turned_values);
        take(g.k.at(n, kv, key), g.k.place, count, kBlock, g.depth, line, R(1), keys);
        turn(keys, line, g.depth, turned_keys);
        for (Index query = g.causal ? key : 0; query < g.queries; query += kBlock) {
          const Tile t = tile_at(g, n, h, query, key);
          const R* own_q = q + query * line;
          const R* own_dy = dy + query * line;
          product<R, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, own_q, line,
                            turned_keys, kBlock, scores, kBlock, false);
          product<R, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, own_dy, line,
                            turned_values, kBlock, slopes, kBlock, false);
          for (Index r = 0; r < t.queries; ++r) {
            R* row = scores + r * kBlock;
            R* slope = slopes + r * kBlock;
            const Index of = t.of(r);
            if (g.mask) add_mask(g, t, r, row);
            const R base = lse[query + r], mean = delta[query + r];
            if (base == -kNone) {  // it sees no key
              for (Index j = 0; j < t.width(); ++j) row[j] = slope[j] = 0;
              continue;
            }
            if (g.p > 0.0) dropout_factors(g, score(g, t, r), t.keys, factors);
            for (Index j = 0; j < of; j += kLanes<R>) {
              V e = power_of_2(load(row + j) - base), d = load(slope + j);
              if (g.p > 0.0) {
                const V factor = load(factors + j);
                store(slope + j, e * (d * factor - mean));
                e *= factor;
              } else {
                store(slope + j, e * (d - mean));
              }
              store(row + j, e);
            }
            for (Index j = of; j < t.width(); ++j) row[j] = slope[j] = 0;
          }
          product<R, true>(Leaves::kTermsBehind, t.shift, t.keys, line, t.queries, scores, kBlock,
                           own_dy, line, dv + key * line, line, true);
          product<R, true>(Leaves::kTermsBehind, t.shift, t.keys, line, t.queries, slopes, kBlock,
                           own_q, line, dk + key * line, line, true);
          product<R, false>(Leaves::kTermsBefore, t.shift, t.queries, line, t.keys, slopes, kBlock,
                            keys, line, dq + query * line, line, true);
        }
      }
      for (Index r = 0; r < g.queries; ++r) give(dq + r * line, g.depth, g.scale, g.dq.at(n, h, r));
    }
    for (Index r = 0; r < g.keys; ++r) {
      give(dk + r * line, g.depth, static_cast<R>(kLn2), g.dk.at(n, kv, r));
      give(dv + r * line, g.depth, R(1), g.dv.at(n, kv, r));
    }
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.attention_forward = forward<T>;
  table.attention_backward = backward<T>;
}

}  // namespace

STARLING_DEFINE_ADDERS(add_attention)

}  // namespace starling::cpu::STARLING_ISA
