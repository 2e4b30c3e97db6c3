#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"

using namespace starling;

namespace {

/// The value of a 16-bit float with `exponent_bits`, worked out by its definition in double
/// arithmetic.
double decode(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// The nearest 16-bit float, ties to even, found by scaling to the grid of the result and rounding
/// there (the default rounding mode of nearbyint is to nearest even).
std::uint16_t encode(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  const auto infinity =
      static_cast<std::uint16_t>(sign | (((1 << exponent_bits) - 1) << mantissa_bits));
  if (std::isinf(magnitude)) return infinity;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const auto steps =
      static_cast<std::int64_t>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  // `steps` counts from the bottom of the binade (or of the subnormals); a carry runs over into the
  // next by itself.
  const std::int64_t base = static_cast<std::int64_t>(exponent + bias - 1) << mantissa_bits;
  const std::int64_t bits = base + steps;
  return bits >= (infinity & 0x7fff) ? infinity : static_cast<std::uint16_t>(sign | bits);
}

template <class Half>
void check_all(int exponent_bits) {
  int wrong = 0;
  const auto check = [&](float value) {
    const std::uint16_t expected = encode(value, exponent_bits);
    if (Half(value).bits != expected && wrong++ < 5)
      CHECK_MESSAGE(false, value << " gave " << Half(value).bits << ", expected " << expected);
  };
  for (int i = 0; i < 65536; ++i) {
    Half half;
    half.bits = static_cast<std::uint16_t>(i);
    const double exact = decode(half.bits, exponent_bits);
    const float value = static_cast<float>(half);
    if (std::isnan(exact)) {
      CHECK(std::isnan(value));
      CHECK(std::isnan(static_cast<float>(Half(value))));
      continue;
    }
    if (static_cast<double>(value) != exact || std::signbit(value) != std::signbit(exact))
      CHECK_MESSAGE(false, "decoding " << i);
    if (Half(value).bits != half.bits && wrong++ < 5) CHECK_MESSAGE(false, "round trip of " << i);
    if (std::isinf(value)) continue;
    // The halfway point to the next number, its neighbours, and points a quarter of the way from
    // it: where rounding goes wrong.
    Half next;
    next.bits = static_cast<std::uint16_t>(i + 1);
    const double above = decode(next.bits, exponent_bits);
    if ((i & 0x7fff) == 0x7fff || std::isnan(above)) continue;
    const double step =
        std::isinf(above) ? std::ldexp(exact, -(15 - exponent_bits)) / 2 : above - exact;
    const float middle = static_cast<float>(exact + step / 2);
    check(middle);
    check(std::nextafter(middle, 0.0f));
    check(std::nextafter(middle, std::isinf(above) ? value * 2 : static_cast<float>(above)));
    check(static_cast<float>(exact + step / 4));
    check(static_cast<float>(exact + 3 * step / 4));
  }
  // A walk over all floats: every exponent, many mantissas.
  for (std::uint64_t u = 0; u < 0x1'0000'0000ull; u += 40'009) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    if (!std::isnan(value)) check(value);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("core/dtype: bf16 against an independent conversion") { check_all<BFloat16>(8); }
TEST_CASE("core/dtype: fp16 against an independent conversion") { check_all<Float16>(5); }

TEST_CASE(
    "core/dtype: NaNs whose payload lies in the bits that are cut off do not become infinity") {
  for (const std::uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu}) {
    const float value = std::bit_cast<float>(nan);
    CHECK(std::isnan(static_cast<float>(BFloat16(value))));
    CHECK(std::isnan(static_cast<float>(Float16(value))));
    CHECK(std::signbit(static_cast<float>(BFloat16(value))) == std::signbit(value));
  }
}
