#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "tests/support/errors.h"

using namespace starling;

TEST_CASE("core/random: Philox 4x32-10 gives Random123's known answers") {
  const auto check = [](std::uint64_t key, std::uint64_t low, std::uint64_t high,
                        std::array<std::uint32_t, 4> expected) {
    const Philox4x32 bits = philox(key, low, high);
    for (std::size_t i = 0; i < 4; ++i) CHECK(bits.v[i] == expected[i]);
  };
  check(0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check(~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: word 0 is the low half.
  check(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e,
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("core/random: the counter of a stream is (index, stream << 32 | epoch)") {
  const Philox4x32 a = random_bits(9, RandomStream::kAugment, 5, 77),
                   b = philox(9, 77, (3ull << 32) | 5);
  CHECK(std::equal(a.v, a.v + 4, b.v));
}

TEST_CASE("core/random: uniform numbers lie in [0, 1)") {
  CHECK(uniform_float(0) == 0.0f);
  CHECK(uniform_float(0xffffffffu) == 1.0f - 0x1p-24f);
  CHECK(uniform_double(0, 0) == 0.0);
  CHECK(uniform_double(0xffffffffu, 0xffffffffu) == 1.0 - 0x1p-53);
}

TEST_CASE("core/random: uniform integers below a bound") {
  const Philox4x32 lowest{{0, 0, 0, 0}}, highest{{~0u, ~0u, ~0u, ~0u}};
  CHECK(uniform_below(lowest, 10) == 0);
  CHECK(uniform_below(highest, 10) == 9);
  CHECK(uniform_below(highest, 1) == 0);
  CHECK(uniform_below(highest, ~0ull) == ~0ull - 1);
  CHECK(uniform_below({{0, 0x80000000u, 0, 0}}, 6) == 3);
  CHECK_THROWS_AS(uniform_below(lowest, 0), Error);
}

TEST_CASE(
    "core/random: permutations are permutations, differ by seed, epoch and stream, and follow "
    "their definition") {
  for (const std::int64_t n : {0, 1, 2, 3, 10, 1000}) {
    std::vector<std::int64_t> permutation = random_permutation(1, RandomStream::kPermutation, 0, n);
    // Fisher-Yates once more, spelled out from the specification.
    std::vector<std::int64_t> expected(static_cast<std::size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    for (std::int64_t i = n - 1; i >= 1; --i) {
      const Philox4x32 bits = philox(1, static_cast<std::uint64_t>(i), 2ull << 32);
      const std::uint64_t number = (static_cast<std::uint64_t>(bits.v[1]) << 32) | bits.v[0];
      const auto j = static_cast<std::int64_t>(std::floor(
          std::ldexp(static_cast<long double>(number), -64) * static_cast<long double>(i + 1)));
      std::swap(expected[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(j)]);
    }
    CHECK(permutation == expected);
    std::sort(permutation.begin(), permutation.end());
    for (std::int64_t i = 0; i < n; ++i) CHECK(permutation[static_cast<std::size_t>(i)] == i);
  }
  const auto base = random_permutation(1, RandomStream::kPermutation, 0, 100);
  CHECK(base == random_permutation(1, RandomStream::kPermutation, 0, 100));
  CHECK(base != random_permutation(2, RandomStream::kPermutation, 0, 100));
  CHECK(base != random_permutation(1, RandomStream::kPermutation, 1, 100));
  CHECK(base != random_permutation(1, RandomStream::kPartition, 0, 100));
}

// Means and deviations: tests/layers/init_test.cpp.
TEST_CASE("core/random: initial values") {
  constexpr std::int64_t kCount = 100'001;
  std::vector<double> x(kCount);
  fill_random(Init::constant(0.25), 1, 0, kCount, x.data());
  CHECK(std::all_of(x.begin(), x.end(), [](double v) { return v == 0.25; }));
  fill_random(Init::uniform(0.5), 1, 0, kCount, x.data());
  CHECK(std::all_of(x.begin(), x.end(), [](double v) { return v >= -0.5 && v < 0.5; }));
  fill_random(Init::normal(2.0), 1, 0, kCount, x.data());
  CHECK(std::all_of(x.begin(), x.end(), [](double v) { return std::isfinite(v); }));
  // Neighbours, which share a block, are not correlated.
  double correlation = 0;
  for (std::size_t i = 0; i + 1 < x.size(); i += 2) correlation += x[i] * x[i + 1];
  CHECK(std::fabs(correlation / (kCount / 2) / 4.0) < 0.02);
  // Number i does not depend on how many are asked for.
  std::vector<double> some(7);
  fill_random(Init::normal(2.0), 1, 0, 7, some.data());
  CHECK(std::equal(some.begin(), some.end(), x.begin()));
}
