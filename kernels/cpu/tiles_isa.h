#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>

#include <cstdint>

// AMX: eight tiles of 16 rows of 64 bytes. In a product of bf16 a row of a left factor is 16 words,
// each a pair of terms one after the other; a row of a right factor is such a word for each of 16
// results.

#define STARLING_TILES __attribute__((target("amx-tile,amx-bf16,avx512bf16")))

namespace starling::cpu::STARLING_ISA {
namespace {

using Index = std::int64_t;

/// While it lives, the thread's eight tiles are 16 × 16 words.
struct TilesInUse {
  STARLING_TILES TilesInUse() {
    struct alignas(64) Config {
      std::uint8_t palette, start_row, reserved[14];
      std::uint16_t row_bytes[16];
      std::uint8_t rows[16];
    };
    static constexpr Config kConfig{.palette = 1,
                                    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                    .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&kConfig);
  }
  STARLING_TILES ~TilesInUse() { _tile_release(); }
};

/// c (+)= a·b of 32 rows, 16 · kWide columns (kWide 1 or 2) and 32 · steps terms: two tiles of a
/// left factor by one or two of a right one. Lines and what lies between two steps are in words.
template <int kWide>
STARLING_TILES static void tile_product(Index steps, const std::uint32_t* a, Index line_a,
                                        Index step_a, const std::uint32_t* b, Index line_b,
                                        Index step_b, float* c, Index line_c, bool add) {
  const Index side = 16, left = line_a * 4, right = line_b * 4, sum = line_c * 4;
  asm volatile("" ::: "memory");  // GCC does not know that loads of tiles read memory
  if (add) {
    _tile_loadd(0, c, sum);
    _tile_loadd(2, c + side * line_c, sum);
    if constexpr (kWide == 2) {
      _tile_loadd(1, c + side, sum);
      _tile_loadd(3, c + side * line_c + side, sum);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (Index i = 0; i < steps; ++i, a += step_a, b += step_b) {
    _tile_loadd(6, b, right);
    _tile_loadd(4, a, left);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + side * line_a, left);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kWide == 2) {
      _tile_loadd(7, b + side, right);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, sum);
  _tile_stored(2, c + side * line_c, sum);
  if constexpr (kWide == 2) {
    _tile_stored(1, c + side, sum);
    _tile_stored(3, c + side * line_c + side, sum);
  }
}

/// Turns 16 lines of 16 words of 4 bytes: four times, lines of the first half alternate with the
/// second's.
template <class Word>
static inline void turn_16x16(const Word* from, Index line_from, Word* to, Index line_to) {
  typedef std::uint32_t Words __attribute__((vector_size(64)));
  typedef std::uint32_t Anywhere __attribute__((vector_size(64), aligned(4), may_alias));
  Words x[16], y[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = *reinterpret_cast<const Anywhere*>(from + i * line_from);
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    Words *in = round % 2 == 0 ? x : y, *out = round % 2 == 0 ? y : x;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = __builtin_shufflevector(in[i], in[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                           21, 6, 22, 7, 23);
      out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                               28, 13, 29, 14, 30, 15, 31);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) *reinterpret_cast<Anywhere*>(to + i * line_to) = x[i];
}

}  // namespace
}  // namespace starling::cpu::STARLING_ISA
#endif
