#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cuda/support.h"

namespace starling::tests {
namespace {

/// Fills elements [first, first + n) of a tensor of zeros and looks at every byte.
template <class T>
void check_fill(DType dtype, T value, double number, std::int64_t first, std::int64_t n) {
  CAPTURE(name_of(dtype));
  CAPTURE(first);
  CAPTURE(n);
  const std::int64_t size = first + n + 9;
  const Tensor all(gpu(), Shape{size}, dtype);
  gpu().fill(all, 0.0);
  gpu().fill(all.slice(first, Shape{n}), number);
  std::vector<T> found(static_cast<std::size_t>(size)), expected(found.size(), T{});
  for (std::int64_t i = first; i < first + n; ++i) expected[static_cast<std::size_t>(i)] = value;
  gpu().copy_to_host(all, found.data());
  CHECK(std::memcmp(found.data(), expected.data(), all.bytes()) == 0);
}

}  // namespace

TEST_CASE("cuda/fill: every dtype, with tails and misaligned starts, and nothing around them") {
  in_every_order([] {
    for (const std::int64_t first : {0, 1, 3, 16}) {
      for (const std::int64_t n : {0, 1, 2, 7, 16, 1000, 4099}) {
        check_fill<float>(DType::kFloat32, -2.5f, -2.5, first, n);
        check_fill<float>(DType::kFloat32, -0.0f, -0.0, first, n);
        check_fill<double>(DType::kFloat64, 0.1, 0.1, first, n);
        check_fill<std::uint16_t>(DType::kBFloat16, BFloat16(0.1f).bits, 0.1, first, n);
        check_fill<std::uint16_t>(DType::kFloat16, Float16(0.1f).bits, 0.1, first, n);
        check_fill<std::int64_t>(DType::kInt64, -7, -7.0, first, n);
        check_fill<std::int32_t>(DType::kInt32, 9, 9.0, first, n);
        check_fill<std::uint8_t>(DType::kUInt8, 200, 200.0, first, n);
      }
    }
  });
}

}  // namespace starling::tests
