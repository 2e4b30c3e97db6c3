#include "kernels/cpu/attention.h"
#include "kernels/cpu/pack_isa.h"
#include "kernels/cpu/tiles_isa.h"
#include "kernels/math/activations.h"
#include "kernels/math/dropout.h"

// Attention in tiles of scores that stay in the caches (Dao 2023, arXiv 2307.08691): forward,
// queries of a block by all keys; backward, keys of a block by all queries. Products take
// tiles of registers, of one factor's numbers times vectors of the other's: of fp32 or fp64, or of
// pairs of bf16 where the processor has products of them (AMX, AVX512_BF16); then weights are
// rounded to bf16 for the products that they go into. Behind a causal diagonal register tiles are
// left out.

namespace starling::cpu::STARLING_ISA {
namespace {

constexpr Index kBlock = kAttentionBlock;
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRegisterVectors = 4;
#elif defined(__AVX2__)
constexpr int kBytes = 32, kRegisterVectors = 2;
#else
constexpr int kBytes = 16, kRegisterVectors = 2;
#endif

template <class R>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(kBytes)));
  typedef float U __attribute__((vector_size(kBytes), aligned(4), may_alias));
  typedef std::int32_t I __attribute__((vector_size(kBytes)));
  typedef std::uint32_t Bits __attribute__((vector_size(kBytes)));
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

/// 0, 1, 2, …
template <class R>
static inline __attribute__((always_inline)) VectorOf<R> numbers_up() {
  VectorOf<R> x;
  for (int i = 0; i < kLanes<R>; ++i) x[i] = static_cast<R>(i);
  return x;
}

/// 2^x within 2 units in the last place for x <= 0 and a little more; 0 below -126, NaN of NaN.
static inline __attribute__((always_inline)) Lanes<float>::V power_of_2(Lanes<float>::V x) {
  using V = Lanes<float>::V;
  using I = Lanes<float>::I;
  const V shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
  V p = 1.5403530393381609e-4f * r + 1.3333558146428443e-3f;
  p = p * r + 9.6181291076284772e-3f;
  p = p * r + 5.5504108664821580e-2f;
  p = p * r + 2.4022650695910072e-1f;
  p = p * r + 6.9314718055994531e-1f;
  p = p * r + 1.0f;
  const Lanes<float>::Bits power = ((Lanes<float>::Bits)shifted + 127u) << 23;
  return (V)(~(I)(x < -126.0f) & (I)(p * (V)power));
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

/// A tile of scores: queries from `query` on by keys from `key` on.
struct Tile {
  Index n, h, query, key, queries, keys;
  Index shift;  ///< key j of the tile goes with query i where j <= i + shift
  /// Keys that query r goes with.
  STARLING_HD Index of(Index r) const { return r + shift + 1 < keys ? r + shift + 1 : keys; }
  STARLING_HD Index width() const { return (keys + 15) / 16 * 16; }
};

/// Which of a product's terms or results the diagonal leaves: key j goes with query i where j <= i
/// + shift.
enum class Leaves { kResults, kTermsBefore, kTermsBehind };

/// Lines turned around: word i of line j at to[i·line_to + j].
template <class Word>
static void turn(const Word* from, Index line_from, Index lines, Index words, Word* to,
                 Index line_to) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Word) == 4) {
    for (Index j = 0; j < lines; j += 16) {
      for (Index i = 0; i < words; i += 16)
        turn_16x16(from + j * line_from + i, line_from, to + i * line_to + j, line_to);
    }
    return;
  }
#endif
  for (Index i = 0; i < words; ++i) {
    for (Index j = 0; j < lines; ++j) to[i * line_to + j] = from[j * line_from + i];
  }
}

/// Factors of products as numbers of R. As left factors they lie in rows of terms, or in columns
/// (kTurned), as right factors in rows of results.
template <class T>
struct Plain {
  using R = Compute<T>;
  using Word = R;
  static constexpr Index kTerms = 1;  ///< in a word
  static constexpr Index kStep = 1;   ///< terms that are multiplied together
  static constexpr int kRows = 6, kVectors = kRegisterVectors;  ///< of a register tile
  static constexpr bool kKeysAreColumns = false;                ///< of their gradients' sums

  /// c (+)= a·b of k terms, kRows rows and kWide vectors; a's number (r, i) is a[r·line + i], or
  /// with kTurned a[i·line + r].
  template <int kWide, bool kTurned>
  static inline __attribute__((always_inline)) void tile(Index k, const R* a, Index line_a,
                                                         const R* b, Index line_b, R* c,
                                                         Index line_c, bool add) {
    using V = VectorOf<R>;
    V sum[kRows][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) sum[r][v] = add ? load(c + r * line_c + v * kLanes<R>) : V{};
    }
#pragma GCC unroll 2
    for (Index i = 0; i < k; ++i) {
      V right[kWide];
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) right[v] = load(b + i * line_b + v * kLanes<R>);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const R left = kTurned ? a[i * line_a + r] : a[r * line_a + i];
#pragma GCC unroll 4
        for (int v = 0; v < kWide; ++v) sum[r][v] += left * right[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) store(c + r * line_c + v * kLanes<R>, sum[r][v]);
    }
  }
  /// Places as lines, with zeros behind them up to `padded` lines.
  static void take(const T* from, Index step, Index places, Index padded, Index depth, Index line,
                   R* to) {
    for (Index t = 0; t < padded; ++t, to += line) {
      const Index n = t < places ? depth : 0;
      const T* x = from + t * step;
      STARLING_LOOP for (Index d = 0; d < n; ++d) to[d] = widen(x[d]);
      for (Index d = n; d < line; ++d) to[d] = 0;
    }
  }
  /// Lines, and weights, as right and left factors whose terms are places: here they are.
  static const R* pairs(const R* lines, Index, Index, R*) { return lines; }
  static const R* of_queries(const R* lines, Index, Index, R*, R*) { return lines; }
  static const R* round(const R* weights, const Tile&, R*) { return weights; }
  static const R* round_turned(const R* weights, const Tile&, R*) { return weights; }
};

#if defined(__AVX512F__)
#define STARLING_PAIRS __attribute__((target("avx512bf16")))

/// Factors as words of two numbers of bf16 that are terms one after the other.
struct Pairs {
  using R = float;
  using Word = std::uint32_t;
  static constexpr Index kTerms = 2, kStep = 2;
  static constexpr int kRows = 6, kVectors = kRegisterVectors;
  static constexpr bool kKeysAreColumns = false;
  static constexpr int kWords = 16;  // of a vector

  template <int kWide, bool kTurned>
  STARLING_PAIRS static void tile(Index k, const Word* a, Index line_a, const Word* b, Index line_b,
                                  float* c, Index line_c, bool add) {
    __m512 sum[kRows][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v)
        sum[r][v] = add ? _mm512_loadu_ps(c + r * line_c + v * kWords) : _mm512_setzero_ps();
    }
#pragma GCC unroll 2
    for (Index i = 0; i < k; ++i) {
      __m512i right[kWide];
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) right[v] = _mm512_loadu_si512(b + i * line_b + v * kWords);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i left =
            _mm512_set1_epi32(static_cast<int>(kTurned ? a[i * line_a + r] : a[r * line_a + i]));
#pragma GCC unroll 4
        for (int v = 0; v < kWide; ++v)
          sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)left, (__m512bh)right[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) _mm512_storeu_ps(c + r * line_c + v * kWords, sum[r][v]);
    }
  }
  static void take(const BFloat16* from, Index step, Index places, Index padded, Index depth,
                   Index line, Word* to) {
    for (Index t = 0; t < padded; ++t, to += line) {
      auto* numbers = reinterpret_cast<BFloat16*>(to);
      const Index n = t < places ? depth : 0;
      for (Index d = 0; d < n; ++d) numbers[d] = from[t * step + d];
      for (Index d = n; d < 2 * line; ++d) numbers[d].bits = 0;
    }
  }
  /// Number d of places 2i and 2i + 1 at to[i·2·line + d]; an even number of lines is there.
  static const Word* pairs(const Word* lines, Index places, Index line, Word* to) {
    for (Index i = 0; i < (places + 1) / 2; ++i) {
      const auto* a = reinterpret_cast<const BFloat16*>(lines + 2 * i * line);
      Word* pair = to + 2 * i * line;
      STARLING_LOOP for (Index d = 0; d < 2 * line; ++d) pair[d] =
          static_cast<Word>(a[d].bits) | static_cast<Word>(a[2 * line + d].bits) << 16;
    }
    return to;
  }
  /// The factor that goes with weights into the gradients of keys and values.
  static const Word* of_queries(const Word* lines, Index places, Index line, Word* to, Word*) {
    return pairs(lines, places, line, to);
  }
  STARLING_PAIRS static inline __attribute__((always_inline)) __m256i narrow16(const float* x) {
    return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x));
  }
  STARLING_PAIRS static const Word* round(const float* weights, const Tile& t, Word* to) {
    for (Index r = 0; r < t.queries; ++r) {
      for (Index j = 0; j < t.width(); j += kWords)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (r * kBlock + j) / 2),
                            narrow16(weights + r * kBlock + j));
    }
    return to;
  }
  /// Of queries 2i and 2i + 1; weights beyond the last query are zero.
  STARLING_PAIRS static const Word* round_turned(const float* weights, const Tile& t, Word* to) {
    for (Index r = 0; r < t.queries; r += 2) {
      for (Index j = 0; j < t.width(); j += kWords) {
        const float* from = weights + r * kBlock + j;
        typedef Word Words __attribute__((vector_size(64)));
        const auto low = (Words)_mm512_maskz_cvtepu16_epi32(0xffff, narrow16(from)),
                   high = (Words)_mm512_maskz_cvtepu16_epi32(0xffff, narrow16(from + kBlock));
        _mm512_storeu_si512(to + r / 2 * kBlock + j, (__m512i)(low | high << 16));
      }
    }
    return to;
  }
};

/// The same words in AMX's tiles of 16 rows of 16: two of a left factor by two of a right one. A
/// left factor lies in rows of terms alone, so that the gradients of keys and values are summed
/// with a key a column: xᵀ·w instead of wᵀ·x.
struct Tiles : Pairs {
  static constexpr Index kStep = 32;
  static constexpr int kRows = 32, kVectors = 2;
  static constexpr bool kKeysAreColumns = true;

  template <int kWide, bool kTurned>
  static void tile(Index k, const Word* a, Index line_a, const Word* b, Index line_b, float* c,
                   Index line_c, bool add) {
    static_assert(!kTurned && kWide <= kVectors);
    tile_product<kWide>(k / kWords, a, line_a, kWords, b, line_b, kWords * line_b, c, line_c, add);
  }
  /// Pairs of places in rows of numbers: number d of places 2i and 2i + 1 at to[d·places/2 + i].
  static const Word* of_queries(const Word* lines, Index places, Index line, Word* to,
                                Word* memory) {
    for (Index i = 0; i < places; i += kBlock) {
      pairs(lines + i * line, kBlock, line, memory);
      turn(memory, 2 * line, kBlock / 2, 2 * line, to + i / 2, places / 2);
    }
    return to;
  }
  /// Terms of a step beyond the tile are zero.
  static const Word* round(float* weights, const Tile& t, Word* to) {
    for (Index r = 0; t.width() % kStep != 0 && r < t.queries; ++r)
      _mm512_storeu_ps(weights + r * kBlock + t.width(), _mm512_setzero_ps());
    Tile whole = t;
    whole.keys = (t.keys + kStep - 1) / kStep * kStep;
    return Pairs::round(weights, whole, to);
  }
  static const Word* round_turned(const float* weights, const Tile& t, Word* to) {
    Pairs::round_turned(weights, t, to);
    for (Index r = (t.queries + 1) / 2; r < (t.queries + kStep - 1) / kStep * kStep / 2; ++r) {
      for (Index j = 0; j < t.width(); j += kWords)
        _mm512_storeu_si512(to + r * kBlock + j, _mm512_setzero_si512());
    }
    return to;
  }
};
#endif

/// What a thread does before its products and behind them.
template <class F>
struct Use {};
#if defined(__AVX512F__)
template <>
struct Use<Tiles> : TilesInUse {};
#endif

/// c (+)= a·b, of `rows` rows, rounded up to register tiles, `columns`, rounded up to vectors, and
/// k terms, rounded up to steps. Lines of factors are words. With kTermsBehind the left factor is
/// weights (kTurned), or the right one.
template <class F, bool kTurned>
static void product(Leaves leaves, Index shift, Index rows, Index columns, Index k,
                    const typename F::Word* a, Index line_a, const typename F::Word* b,
                    Index line_b, typename F::R* c, Index line_c, bool add) {
  constexpr Index kTerms = F::kTerms, kStep = F::kStep, kRows = F::kRows,
                  kVector = kLanes<typename F::R>;
  const Index vectors = (columns + kVector - 1) / kVector,
              panels = (vectors + F::kVectors - 1) / F::kVectors;
  for (Index panel = 0, v = 0; panel < panels; ++panel) {
    const Index width = (vectors - v + panels - panel - 1) / (panels - panel), first = v * kVector;
    for (Index r = 0; r < rows; r += kRows) {
      Index begin = 0, end = k;
      if (leaves == Leaves::kResults && first >= r + kRows + shift) continue;
      if (leaves == Leaves::kTermsBefore && end > r + kRows + shift) end = r + kRows + shift;
      if (const Index key = kTurned ? r : first; leaves == Leaves::kTermsBehind && key > shift)
        begin = key - shift;
      if (begin >= end && add) continue;
      begin = begin / kStep * (kStep / kTerms);
      const Index n = (end + kStep - 1) / kStep * (kStep / kTerms) - begin;
      const auto* left = a + (kTurned ? r + begin * line_a : r * line_a + begin);
      const auto* right = b + begin * line_b + first;
      auto* to = c + r * line_c + first;
      switch (width) {
        case 1:
          F::template tile<1, kTurned>(n, left, line_a, right, line_b, to, line_c, add);
          break;
        case 2:
          F::template tile<2, kTurned>(n, left, line_a, right, line_b, to, line_c, add);
          break;
        case 3:
          if constexpr (F::kVectors > 2)
            F::template tile<3, kTurned>(n, left, line_a, right, line_b, to, line_c, add);
          break;
        default:
          if constexpr (F::kVectors > 2)
            F::template tile<4, kTurned>(n, left, line_a, right, line_b, to, line_c, add);
      }
    }
    v += width;
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
  for (Index group = first / 4; group * 4 < first + n; ++group) {
    const math::DropoutMask mask = math::dropout_mask(
        g.key, g.counter, static_cast<std::uint64_t>(group), static_cast<float>(g.p));
    for (Index j = 0; j < 4; ++j) {
      const Index i = group * 4 + j;
      if (i >= first && i < first + n) to[i - first] = mask.keep[j] ? kept : Compute<T>(0);
    }
  }
}

template <class T>
static inline Tile tile_at(const AttentionCall<T>& g, Index n, Index h, Index query, Index key) {
  const auto rest = [](Index all, Index at) { return all - at < kBlock ? all - at : kBlock; };
  constexpr Index kFar = Index{1} << 40;
  return {
      n, h, query, key, rest(g.queries, query), rest(g.keys, key), g.causal ? query - key : kFar};
}
/// The first key of the tile that query r goes with; the keys' number and more where none does.
template <class T>
static inline Index from_key(const AttentionCall<T>& g, const Tile& t, Index r) {
  const Index from = g.first_key(t.n, t.query + r) - t.key;
  return from > 0 ? from : 0;
}
/// Scores in powers of 2, with the mask.
template <class T>
static inline void add_mask(const AttentionCall<T>& g, const Tile& t, Index r, Compute<T> factor,
                            Compute<T>* row) {
  const T* mask = g.mask + t.n * g.mask_sample + t.h * g.mask_head + (t.query + r) * g.mask_query +
                  t.key * g.mask_key;
  for (Index j = 0; j < t.of(r); ++j)
    row[j] = row[j] * factor + widen(mask[j * g.mask_key]) * static_cast<Compute<T>>(kLog2E);
}
template <class T>
static inline Index score(const AttentionCall<T>& g, const Tile& t, Index r) {
  return ((t.n * g.heads + t.h) * g.queries + t.query + r) * g.keys + t.key;
}
/// Reduces a vector by halves, which compilers do not generate.
template <class R, class F>
static inline __attribute__((always_inline)) R fold(VectorOf<R> x, F combine) {
  R lane[kLanes<R>];
  store(lane, x);
#if defined(__AVX2__)
  if constexpr (sizeof(R) == 4) {
    __m256 half = _mm256_loadu_ps(lane);
    if constexpr (kLanes<R> == 16) half = combine(half, _mm256_loadu_ps(lane + 8));
    __m128 four = combine(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    four = combine(four, _mm_movehl_ps(four, four));
    return combine(four[0], four[1]);
  }
#endif
  for (int i = 1; i < kLanes<R>; ++i) lane[0] = combine(lane[0], lane[i]);
  return lane[0];
}

template <class T>
static inline Compute<T> dot(const T* a, const T* b, Index n) {
  constexpr Index kMany = 16;
  Compute<T> lane[kMany] = {}, sum = 0;
  Index i = 0;
  for (; i + kMany <= n; i += kMany)
    for (Index j = 0; j < kMany; ++j) lane[j] += widen(a[i + j]) * widen(b[i + j]);
  for (Index j = 0; j < kMany; ++j) sum += lane[j];
  for (; i < n; ++i) sum += widen(a[i]) * widen(b[i]);
  return sum;
}

/// Memory of a thread, given out piece by piece.
struct Scratch {
  float* at;
  template <class N>
  N* take(Index n) {
    auto* result = reinterpret_cast<N*>(at);
    at += (n * static_cast<Index>(sizeof(N)) + 63) / 64 * 16;
    return result;
  }
};

/// Turns a row of scores of keys [from, of) into softmax weights that are not yet divided by their
/// sum. A score above the running maximum `most` scales `total` and `sums` of earlier keys down.
template <class R>
static inline void soften(R* row, Index from, Index of, Index width, R factor, R& most, R& total,
                          R* sums, Index line) {
  using V = VectorOf<R>;
  constexpr R kNone = -__builtin_huge_val();
  constexpr int kVector = kLanes<R>;
  V largest = V{} + kNone;
  const Index begin = (from < width ? from : width) / kVector * kVector,
              end = of < begin ? begin : (of + kVector - 1) / kVector * kVector;
  const auto place = numbers_up<R>();
  for (Index j = begin; j < end; j += kVector) {
    V x = load(row + j) * factor;
    if (j < from || j + kVector > of) {
      const auto at = place + static_cast<R>(j);
      x = (at >= static_cast<R>(from)) & (at < static_cast<R>(of)) ? x : V{} + kNone;
    }
    store(row + j, x);
    largest = x > largest ? x : largest;
  }
  const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
  const R now = larger(fold<R>(largest, larger), most);
  const R base = now == kNone ? R(0) : now;
  if (now != most) {
    const R faded = number_power_of_2(most - base);
    total *= faded;
    for (Index d = 0; d < line; ++d) sums[d] *= faded;
    most = now;
  }
  V sum{};
  for (Index j = 0; j < begin; j += kVector) store(row + j, V{});
  for (Index j = begin; j < end; j += kVector) {
    const V e = power_of_2(load(row + j) - base);
    sum += e;
    store(row + j, e);
  }
  for (Index j = end; j < width; j += kVector) store(row + j, V{});
  total += fold<R>(
      sum, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

/// Query blocks first … last - 1, counted over samples, heads and blocks.
template <class F, class T>
static void forward(const AttentionCall<T>& g, Index first, Index last, Compute<T>* memory) {
  using R = Compute<T>;
  using Word = typename F::Word;
  constexpr R kNone = -__builtin_huge_val();
  const Index line = g.line(), words = line / F::kTerms, blocks = g.query_blocks();
  const R factor = g.scale * static_cast<R>(kLog2E);
  Scratch scratch{reinterpret_cast<float*>(memory)};
  Word* turned = scratch.take<Word>(g.key_rows() * words);
  Word* values = scratch.take<Word>(g.key_rows() * words);
  Word* q = scratch.take<Word>(kBlock * words);
  Word* rounded = scratch.take<Word>(kBlock * kBlock / F::kTerms);
  R* scores = scratch.take<R>(kBlock * kBlock);
  R* sums = scratch.take<R>(kBlock * line);
  R* most = scratch.take<R>(kBlock);
  R* total = scratch.take<R>(kBlock);
  R* factors = scratch.take<R>(kBlock);
  [[maybe_unused]] const Use<F> use;
  Index packed = -1;  // which keys and values are packed
  for (Index task = first; task < last; ++task) {
    const Index n = task / blocks / g.heads, h = task / blocks % g.heads,
                query = task % blocks * kBlock, kv = h / (g.heads / g.kv_heads);
    if (packed != n * g.kv_heads + kv) {
      packed = n * g.kv_heads + kv;
      for (Index key = 0; key < g.keys; key += kBlock) {
        const Index count = g.keys - key < kBlock ? g.keys - key : kBlock;
        Word *own = values + key * words, *block = reinterpret_cast<Word*>(sums);
        F::take(g.k.at(n, kv, key), g.k.place, count, kBlock, g.depth, words, block);
        turn(block, words, kBlock, words, turned + key * words, kBlock);
        F::take(g.v.at(n, kv, key), g.v.place, count, kBlock, g.depth, words,
                F::kTerms == 1 ? own : block);
        F::pairs(F::kTerms == 1 ? own : block, kBlock, words, own);
      }
    }
    Tile t = tile_at(g, n, h, query, 0);
    F::take(g.q.at(n, h, query), g.q.place, t.queries,
            (t.queries + F::kRows - 1) / F::kRows * F::kRows, g.depth, words, q);
    for (Index r = 0; r < kBlock; ++r) most[r] = kNone, total[r] = 0;
    for (Index i = 0; i < kBlock * line; ++i) sums[i] = 0;
    const Index end = g.causal && query + t.queries < g.keys ? query + t.queries : g.keys;
    for (Index key = g.first_key(n, query) / kBlock * kBlock; key < end; key += kBlock) {
      t = tile_at(g, n, h, query, key);
      product<F, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, q, words,
                        turned + key * words, kBlock, scores, kBlock, false);
      for (Index r = 0; r < t.queries; ++r) {
        R* row = scores + r * kBlock;
        if (g.mask) add_mask(g, t, r, factor, row);
        soften(row, from_key(g, t, r), t.of(r), t.width(), g.mask ? R(1) : factor, most[r],
               total[r], sums + r * line, line);
        if (g.p > 0.0) {
          dropout_factors(g, score(g, t, r), t.keys, factors);
          for (Index j = 0; j < t.keys; ++j) row[j] *= factors[j];
        }
      }
      product<F, false>(Leaves::kTermsBefore, t.shift, t.queries, line, t.keys,
                        F::round(scores, t, rounded), kBlock / F::kTerms, values + key * words,
                        line, sums, line, true);
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

/// Adds a tile's weights times places of queries to the sums of its keys.
template <class F>
static inline void add_to_keys(const Tile& t, const typename F::Word* weights,
                               const typename F::Word* places, Index rows, Index line,
                               typename F::R* sums, Index key_rows) {
  constexpr auto kLeaves = Leaves::kTermsBehind;
  if constexpr (F::kKeysAreColumns) {
    product<F, false>(kLeaves, t.shift, line, t.width(), t.queries, places + t.query / F::kTerms,
                      rows / F::kTerms, weights, kBlock, sums + t.key, key_rows, true);
  } else {
    product<F, true>(kLeaves, t.shift, t.keys, line, t.queries, weights, kBlock,
                     places + t.query * (line / F::kTerms), line, sums + t.key * line, line, true);
  }
}
template <class F, class T>
static void give_keys(const AttentionCall<T>& g, const Compute<T>* sums, Index line,
                      [[maybe_unused]] Compute<T>* lines, Compute<T> factor, T* to, Index place) {
  for (Index key = 0; key < g.keys; key += kBlock) {
    const Compute<T>* from = sums + key * line;
    if constexpr (F::kKeysAreColumns) {
      turn(sums + key, g.key_rows(), line, kBlock, lines, line);
      from = lines;
    }
    for (Index r = 0; r < kBlock && key + r < g.keys; ++r)
      give(from + r * line, g.depth, factor, to + (key + r) * place);
  }
}

/// All heads of keys and values first … last - 1, counted over samples.
template <class F, class T>
static void backward(const AttentionCall<T>& g, Index first, Index last, Compute<T>* memory) {
  using R = Compute<T>;
  using V = VectorOf<R>;
  using Word = typename F::Word;
  constexpr R kNone = -__builtin_huge_val();
  const Index line = g.line(), words = line / F::kTerms, group = g.heads / g.kv_heads,
              rows = g.query_rows();
  const R factor = g.scale * static_cast<R>(kLog2E);
  Scratch scratch{reinterpret_cast<float*>(memory)};
  Word* q = scratch.take<Word>(rows * words);
  Word* dy = scratch.take<Word>(rows * words);
  // Elements in pairs are there as lines, too.
  Word* q_memory = F::kTerms == 1 ? q : scratch.take<Word>(rows * words);
  Word* dy_memory = F::kTerms == 1 ? dy : scratch.take<Word>(rows * words);
  R* lines = F::kKeysAreColumns ? scratch.take<R>(kBlock * line) : nullptr;
  R* dq = scratch.take<R>(rows * line);
  R* dk = scratch.take<R>(g.key_rows() * line);
  R* dv = scratch.take<R>(g.key_rows() * line);
  R* lse = scratch.take<R>(rows);
  R* delta = scratch.take<R>(rows);
  Word* keys = scratch.take<Word>(kBlock * words);
  Word* keys_memory = scratch.take<Word>(kBlock * words);
  Word* turned_keys = scratch.take<Word>(kBlock * words);
  Word* turned_values = scratch.take<Word>(kBlock * words);
  Word* rounded = scratch.take<Word>(kBlock * kBlock / F::kTerms);
  R* scores = scratch.take<R>(kBlock * kBlock);
  R* slopes = scratch.take<R>(kBlock * kBlock);
  R* factors = scratch.take<R>(kBlock + 16);
  [[maybe_unused]] const Use<F> use;
  for (Index task = first; task < last; ++task) {
    const Index n = task / g.kv_heads, kv = task % g.kv_heads;
    for (Index i = 0; i < g.key_rows() * line; ++i) dk[i] = dv[i] = 0;
    for (Index h = kv * group; h < (kv + 1) * group; ++h) {
      F::take(g.q.at(n, h), g.q.place, g.queries, rows, g.depth, words, q);
      F::take(g.dy.at(n, h), g.dy.place, g.queries, rows, g.depth, words, dy);
      const Word* q_places = F::of_queries(q, rows, words, q_memory, keys_memory);
      const Word* dy_places = F::of_queries(dy, rows, words, dy_memory, keys_memory);
      for (Index i = 0; i < rows * line; ++i) dq[i] = 0;
      for (Index r = 0; r < g.queries; ++r) {
        delta[r] = dot(g.y.at(n, h, r), g.dy.at(n, h, r), g.depth);
        lse[r] = g.lse[(n * g.heads + h) * g.queries + r] * static_cast<R>(kLog2E);
      }
      for (Index key = 0; key < g.keys; key += kBlock) {
        const Index count = g.keys - key < kBlock ? g.keys - key : kBlock;
        F::take(g.v.at(n, kv, key), g.v.place, count, kBlock, g.depth, words, keys);
        turn(keys, words, kBlock, words, turned_values, kBlock);
        F::take(g.k.at(n, kv, key), g.k.place, count, kBlock, g.depth, words, keys);
        turn(keys, words, kBlock, words, turned_keys, kBlock);
        const Word* key_places = F::pairs(keys, kBlock, words, keys_memory);
        for (Index query = g.causal ? key : 0;
             query < g.queries && g.first_key(n, query) < key + count; query += kBlock) {
          const Tile t = tile_at(g, n, h, query, key);
          const Index at = query * words;
          product<F, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, q + at, words,
                            turned_keys, kBlock, scores, kBlock, false);
          product<F, false>(Leaves::kResults, t.shift, t.queries, t.width(), g.depth, dy + at,
                            words, turned_values, kBlock, slopes, kBlock, false);
          for (Index r = 0; r < t.queries; ++r) {
            R* row = scores + r * kBlock;
            R* slope = slopes + r * kBlock;
            const Index of = t.of(r);
            const R base = lse[query + r], mean = delta[query + r];
            if (base == -kNone) {  // it sees no key
              for (Index j = 0; j < t.width(); ++j) row[j] = slope[j] = 0;
              continue;
            }
            if (g.mask) add_mask(g, t, r, factor, row);
            const R by = g.mask ? R(1) : factor;
            if (g.p > 0.0) dropout_factors(g, score(g, t, r), t.keys, factors);
            for (Index j = 0; j < of; j += kLanes<R>) {
              V e = power_of_2(load(row + j) * by - base), d = load(slope + j);
              if (g.p > 0.0) {
                const V kept = load(factors + j);
                store(slope + j, e * (d * kept - mean));
                e *= kept;
              } else {
                store(slope + j, e * (d - mean));
              }
              store(row + j, e);
            }
            for (Index j = of; j < t.width(); ++j) row[j] = slope[j] = 0;
            for (Index j = 0, from = from_key(g, t, r); j < from && j < of; ++j)
              row[j] = slope[j] = 0;
          }
          if (t.queries % 2 != 0)
            for (Index j = 0; j < t.width(); ++j)
              scores[t.queries * kBlock + j] = slopes[t.queries * kBlock + j] = 0;
          add_to_keys<F>(t, F::round_turned(scores, t, rounded), dy_places, rows, line, dv,
                         g.key_rows());
          add_to_keys<F>(t, F::round_turned(slopes, t, rounded), q_places, rows, line, dk,
                         g.key_rows());
          product<F, false>(Leaves::kTermsBefore, t.shift, t.queries, line, t.keys,
                            F::round(slopes, t, rounded), kBlock / F::kTerms, key_places, line,
                            dq + query * line, line, true);
        }
      }
      for (Index r = 0; r < g.queries; ++r) give(dq + r * line, g.depth, g.scale, g.dq.at(n, h, r));
    }
    give_keys<F>(g, dk, line, lines, g.scale, g.dk.at(n, kv), g.dk.place);
    give_keys<F>(g, dv, line, lines, R(1), g.dv.at(n, kv), g.dv.place);
  }
}

template <class T>
static void set(Kernels<T>& table) {
  table.attention_forward = forward<Plain<T>, T>;
  table.attention_backward = backward<Plain<T>, T>;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    const Bf16Unit unit = bf16_unit();
    if (unit == Bf16Unit::kNone) return;
    const bool tiles = unit == Bf16Unit::kTiles;
    table.attention_forward = tiles ? forward<Tiles, T> : forward<Pairs, T>;
    table.attention_backward = tiles ? backward<Tiles, T> : backward<Pairs, T>;
  }
#endif
}

}  // namespace

void add_attention(AllKernels& all) { set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16); }

}  // namespace starling::cpu::STARLING_ISA
