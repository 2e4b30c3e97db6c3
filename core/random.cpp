#include "core/random.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"

namespace starling {

std::uint64_t uniform_below(const Philox4x32& bits, std::uint64_t bound) {
  require(bound > 0, "random", "a random integer below 0 was asked for");
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t number = (static_cast<std::uint64_t>(bits.v[1]) << 32) | bits.v[0];
  return static_cast<std::uint64_t>((static_cast<Wide>(number) * bound) >> 64);
}

std::vector<std::int64_t> random_permutation(std::uint64_t seed, RandomStream stream,
                                             std::uint32_t epoch, std::int64_t n) {
  require(n >= 0, "random", "a permutation of {} numbers was asked for", n);
  std::vector<std::int64_t> result(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = result.size(); i-- > 1;) {
    std::swap(result[i], result[uniform_below(random_bits(seed, stream, epoch, i), i + 1)]);
  }
  return result;
}

void fill_random(const Init& init, std::uint64_t seed, std::uint32_t tensor, std::int64_t count,
                 double* out, std::int64_t first_number) {
  require(first_number % 2 == 0, "random", "numbers from {} on, which is odd", first_number);
  if (init.kind == Init::Kind::kConstant) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = init.a;
    return;
  }
  for (std::int64_t i = 0; i < count; i += 2) {  // one Philox block gives two numbers of 53 bits
    const Philox4x32 bits = random_bits(seed, RandomStream::kInit, tensor,
                                        static_cast<std::uint64_t>((first_number + i) / 2));
    const double u = uniform_double(bits.v[0], bits.v[1]), v = uniform_double(bits.v[2], bits.v[3]);
    double first, second;
    if (init.kind == Init::Kind::kUniform) {
      first = init.a + (init.b - init.a) * u;
      second = init.a + (init.b - init.a) * v;
    } else {
      // Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958; 1 - u is never
      // 0.
      const double radius = init.b * std::sqrt(-2.0 * std::log(1.0 - u)),
                   angle = 2.0 * std::numbers::pi * v;
      first = init.a + radius * std::cos(angle);
      second = init.a + radius * std::sin(angle);
    }
    out[i] = first;
    if (i + 1 < count) out[i + 1] = second;
  }
}

}  // namespace starling
