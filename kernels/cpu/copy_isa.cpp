#include <utility>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pack_isa.h"

// Copies. Matrices are transposed in tiles with sides of a cache line, which fit into registers;
// two by two, for longer accesses to memory.

namespace starling::cpu::STARLING_ISA {
namespace {

#if defined(__AVX512F__)
constexpr Index kVector = 64;  // bytes
#elif defined(__AVX2__)
constexpr Index kVector = 32;
#else
constexpr Index kVector = 16;
#endif

/// A matrix of kSide · kSide words in registers.
template <class W>
struct Tile {
  static constexpr int kSide = static_cast<int>(kVector / static_cast<Index>(sizeof(W)));
  typedef W Vector __attribute__((vector_size(kVector)));

  /// Of two rows that are kHalf apart: the first halves of runs of 2·kHalf words, or the second.
  template <int kHalf, int kSecond, int... kWord>
  [[gnu::always_inline]] static Vector mixed(const Vector& a, const Vector& b,
                                             std::integer_sequence<int, kWord...>) {
    return __builtin_shufflevector(
        a, b, (kWord & kHalf ? kSide + kWord - (1 - kSecond) * kHalf : kWord + kSecond * kHalf)...);
  }
  /// Exchanges rows and columns: halves of kHalf words among rows that are kHalf apart, and so on.
  template <int kHalf>
  [[gnu::always_inline]] static void transpose(Vector (&v)[kSide]) {
    constexpr std::make_integer_sequence<int, kSide> kWords;
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) {
      if (i & kHalf) continue;
      const Vector a = v[i], b = v[i + kHalf];
      v[i] = mixed<kHalf, 0>(a, b, kWords);
      v[i + kHalf] = mixed<kHalf, 1>(a, b, kWords);
    }
    if constexpr (kHalf > 1) transpose<kHalf / 2>(v);
  }
};

/// The word that holds a number, or two of 16 bits.
template <class T>
struct WordOf {
  using Type = std::uint32_t;
};
template <>
struct WordOf<double> {
  using Type = std::uint64_t;
};
template <class T>
constexpr int kInWord = sizeof(T) == 2 ? 2 : 1;
template <class T>
constexpr Index kTileSide = Tile<typename WordOf<T>::Type>::kSide* kInWord<T>;

template <class T>
STARLING_HD auto load_line(const T* from) {
  typename Tile<typename WordOf<T>::Type>::Vector result;
  __builtin_memcpy(&result, from, kVector);
  return result;
}

/// Of 16-bit numbers pairs of rows become words of an even and of an odd column.
template <class T>
STARLING_HD void transpose_tile(const T* x, Index line_x, T* y, Index line_y, bool streamed) {
  using Word = typename WordOf<T>::Type;
  using Words = Tile<Word>;
  constexpr int kSide = Words::kSide, kPer = kInWord<T>;
#pragma GCC unroll 2
  for (int part = 0; part < kPer; ++part) {
    typename Words::Vector v[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) {
      if constexpr (kPer == 2) {
        const auto even = load_line(x + 2 * i * line_x), odd = load_line(x + (2 * i + 1) * line_x);
        v[i] = part == 0 ? (even & 0xffffu) | (odd << 16) : (even >> 16) | (odd & 0xffff0000u);
      } else {
        v[i] = load_line(x + i * line_x);
      }
    }
    Words::template transpose<kSide / 2>(v);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) {
      T* to = y + (kPer * i + part) * line_y;
      if (streamed) {
        stream(to, reinterpret_cast<const T*>(&v[i]), kTileSide<T>);
      } else {
        __builtin_memcpy(static_cast<void*>(to), &v[i], kVector);
      }
    }
  }
}

/// Matrices of kCount columns, or rows, that follow each other: pixels' channels.
template <Index kCount, class T>
static inline void split_columns(const T* __restrict x, T* __restrict y, Index line_y, Index rows) {
  for (Index c = 0; c < kCount; ++c) {
    STARLING_LOOP for (Index r = 0; r < rows; ++r) y[c * line_y + r] = x[r * kCount + c];
  }
}
template <Index kCount, class T>
static inline void join_rows(const T* __restrict x, Index line_x, T* __restrict y, Index columns) {
  STARLING_LOOP for (Index c = 0; c < columns; ++c) {
    for (Index r = 0; r < kCount; ++r) y[c * kCount + r] = x[r * line_x + c];
  }
}

template <class T>
static void transpose(const T* x, Index line_x, T* y, Index line_y, Index rows, Index columns,
                      bool large) {
  if (columns == 3 && line_x == 3) return split_columns<3>(x, y, line_y, rows);
  if (rows == 3 && line_y == 3) return join_rows<3>(x, line_x, y, columns);
  constexpr Index kSide = kTileSide<T>, kBlock = 2 * kSide;
  const bool streamed = large && kVector >= 32 && reinterpret_cast<unsigned long>(y) % 64 == 0 &&
                        line_y * static_cast<Index>(sizeof(T)) % 64 == 0;
  const Index whole_rows = rows / kSide * kSide, whole_columns = columns / kSide * kSide;
  for (Index r0 = 0; r0 < whole_rows; r0 += kBlock) {
    const Index r_end = r0 + kBlock < whole_rows ? r0 + kBlock : whole_rows;
    for (Index c0 = 0; c0 < whole_columns; c0 += kBlock) {
      const Index c_end = c0 + kBlock < whole_columns ? c0 + kBlock : whole_columns;
      for (Index c = c0; c < c_end; c += kSide) {
        for (Index r = r0; r < r_end; r += kSide) {
          const T* from = x + r * line_x + c;
          for (Index i = 0; i < kSide; ++i)
            __builtin_prefetch(from + i * line_x + 2 * kBlock, 0, 1);
          transpose_tile(from, line_x, y + c * line_y + r, line_y, streamed);
        }
      }
    }
  }
  if (streamed) end_stream();
  for (Index c = 0; c < columns; ++c) {
    for (Index r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      y[c * line_y + r] = x[r * line_x + c];
  }
}

/// The caller has others wait for what goes past the caches: many calls are few lines.
template <class T>
static void copy_lines(const T* x, Index line_x, T* y, Index line_y, Index lines, Index n,
                       bool large) {
  const auto bytes = [](Index count) { return count * static_cast<Index>(sizeof(T)); };
  if (large && reinterpret_cast<unsigned long>(y) % 64 == 0 && bytes(line_y) % 64 == 0 &&
      bytes(n) % 64 == 0) {
    for (Index i = 0; i < lines; ++i) stream(y + i * line_y, x + i * line_x, n);
    return;
  }
  for (Index i = 0; i < lines; ++i)
    __builtin_memcpy(static_cast<void*>(y + i * line_y), x + i * line_x,
                     static_cast<unsigned long>(bytes(n)));
}

template <class T>
static void set(Kernels<T>& table) {
  table.transpose = transpose<T>;
  table.copy_lines = copy_lines<T>;
}

}  // namespace

void add_copy(AllKernels& all) { set(all.fp32), set(all.fp64), set(all.bf16), set(all.fp16); }

}  // namespace starling::cpu::STARLING_ISA
