#pragma once

#include <cstdint>
#include <vector>

#include "core/parameter.h"
#include "core/philox.h"

namespace starling {

/// What random numbers are for. Each use has its own stream, so that one use never changes
/// another's numbers.
enum class RandomStream : std::uint32_t {
  kInit = 1,
  kPermutation = 2,
  kAugment = 3,
  kDropout = 4,
  kSynthetic = 5,
  kTopology = 6,
  kPartition = 7,
  kSampler = 8,
};

/// Random number number `index` of stream (stream, epoch) under `seed`: Philox with key = seed and
/// counter = (stream, epoch, index) (semantics.md section 9: low word index, high word stream << 32
/// | epoch).
inline Philox4x32 random_bits(std::uint64_t seed, RandomStream stream, std::uint32_t epoch,
                              std::uint64_t index) {
  return philox(seed, index, (static_cast<std::uint64_t>(stream) << 32) | epoch);
}

/// Uniform integer in [0, bound), without bias worth speaking of (64-bit multiply-shift).
std::uint64_t uniform_below(const Philox4x32& bits, std::uint64_t bound);

/// Fisher-Yates permutation of 0 … n-1 from (seed, stream, epoch): for i = n-1 … 1 swaps i with a
/// uniform j in [0, i] drawn from index i.
std::vector<std::int64_t> random_permutation(std::uint64_t seed, RandomStream stream,
                                             std::uint32_t epoch, std::int64_t n);

/// Fills numbers `first` … first + count - 1 by `init`; number i depends on (seed, tensor, i)
/// alone. `first` is even.
void fill_random(const Init& init, std::uint64_t seed, std::uint32_t tensor, std::int64_t count,
                 double* out, std::int64_t first = 0);

}  // namespace starling
