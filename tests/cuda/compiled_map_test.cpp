// Expressions that are compiled to kernels of their own, against the kernel that looks steps up.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/operations/checker.h"
#include "core/operations/map.h"
#include "kernels/cuda/libraries/map_source.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/operations/operation_table.h"

namespace starling::tests {
namespace {

using F = MapFunction;
constexpr std::uint8_t kResult = kMapResults, kNumber = kMapNumbers;

struct Places {
  std::string what;
  Shape y;
  std::vector<Shape> in;  ///< three
  std::int64_t offset = 0;
  bool wide = false;  ///< the second operand in the type of arithmetic
};

/// y = gelu(a) · sigmoid(b) + 1.5 · c, and the product beside it.
Map gated(const std::vector<Tensor>& in, const Tensor& y, const Tensor& product) {
  Map map({{F::kGelu, 0},
           {F::kSigmoid, 1},
           {F::kMultiply, kResult, kResult + 1},
           {F::kMultiply, 2, kNumber},
           {F::kAdd, kResult + 2, kResult + 3}},
          {in[0], in[1], in[2]}, y, {1.5});
  map.also[0] = {product, kResult + 2};
  return map;
}

/// How far results may be apart: of a product and a sum a GPU's compiler makes one operation.
double apart(DType dtype) {
  if (!on_gpu()) return 0.0;
  return dtype == DType::kFloat64 ? 1e-13 : dtype == DType::kFloat32 ? 2e-6 : 8e-3;
}

}  // namespace

TEST_CASE("cuda/compiled_map: a compiled expression is one whose steps are looked up") {
  const std::vector<Places> all{
      {"plain, with a tail", {1203}, {{1203}, {1203}, {1203}}},
      {"misaligned", {1203}, {{1203}, {1203}, {1203}}, 1},
      {"one number for all", {1203}, {{1203}, {1}, {1203}}, 0, true},
      {"columns and rows", {37, 64}, {{37, 64}, {64}, {37, 1}}, 0, true},
      {"lines that are no packs", {3, 5, 7, 9}, {{3, 5, 7, 9}, {5, 1, 9}, {3, 1, 7, 1}}},
      {"two dimensions repeated", {3, 5, 7, 8}, {{3, 1, 7, 8}, {5, 1, 1}, {3, 5, 7, 8}}},
  };
  const std::unique_ptr<cuda::Compiler> nvrtc = compiler();
  REQUIRE(nvrtc);
  // Each text takes the C++ compiler half a second.
  for (const DType dtype : kFloatingTypes) {
    if (!on_gpu() && dtype != DType::kBFloat16) continue;
    for (const Places& one : all) {
      CAPTURE(name_of(dtype));
      CAPTURE(one.what);
      std::vector<Tensor> in;
      for (std::size_t i = 0; i < one.in.size(); ++i) {
        const DType type = one.wide && i == 1 ? wide_of(dtype) : dtype;
        in.push_back(to_tensor(gpu(), random_numbers(one.in[i].elements(), 7 + i), one.in[i], type,
                               one.offset));
      }
      const std::int64_t n = one.y.elements();
      const auto place = [&](std::uint64_t seed) {
        return to_tensor(gpu(), random_numbers(n, seed), one.y, dtype, one.offset);
      };
      const Tensor y = place(1), product = place(2), expected_y = place(3), expected = place(4);
      gpu().map(gated(in, expected_y, expected));
      const Map map = gated(in, y, product);
      const MapLayout layout = layout_of(map, one.y, y);
      const cuda::MapCall call = cuda::map_call(map, layout);
      CHECK(nvrtc->launch(
          call.key, [&] { return cuda::map_text(map, layout, call.pack); },
          static_cast<unsigned>((call.threads + cuda::kThreads - 1) / cuda::kThreads),
          call.arguments, gpu().handle(), false));
      gpu().synchronize();
      const double most = apart(dtype);
      CHECK(distance(to_numbers(y), to_numbers(expected_y)) <= most);
      CHECK(distance(to_numbers(product), to_numbers(expected)) <= most);
    }
  }
}

TEST_CASE("cuda/compiled_map: every function") {
  const std::unique_ptr<cuda::Compiler> nvrtc = compiler();
  REQUIRE(nvrtc);
  // In few kernels; in the C++ compiler's place of NVRTC one will do.
  std::vector<F> functions;
#define STARLING_EVERY(name, operands, value) functions.push_back(F::name);
  STARLING_MAP_FUNCTIONS(STARLING_EVERY)
#undef STARLING_EVERY
  const Shape shape{203};
  Numbers numbers = random_numbers(shape.elements(), 3);
  for (std::size_t i = 0; i < 4; ++i) numbers[50 * i] = Numbers{0.0, INFINITY, -INFINITY, NAN}[i];
  if (!on_gpu()) functions.resize(kMapOutputs);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor a = to_tensor(gpu(), numbers, shape, dtype),
                 b = to_tensor(gpu(), random_numbers(shape.elements(), 5), shape, dtype);
    for (std::size_t first = 0; first < functions.size(); first += kMapOutputs) {
      Map map;
      map.in = {a, b};
      std::vector<Tensor> found, expected;
      for (std::size_t i = first; i < std::min(first + kMapOutputs, functions.size()); ++i) {
        map.steps[static_cast<std::size_t>(map.count++)] = {functions[i], 0, 1};
        found.emplace_back(gpu(), shape, dtype);
        expected.emplace_back(gpu(), shape, dtype);
        gpu().map({functions[i], a, b, expected.back()});
      }
      map.y = found.back();
      for (std::size_t i = 0; i + 1 < found.size(); ++i)
        map.also[i] = {found[i], static_cast<std::uint8_t>(kResult + i)};
      const MapLayout layout = layout_of(map, shape, map.y);
      const cuda::MapCall call = cuda::map_call(map, layout);
      CHECK(nvrtc->launch(
          call.key, [&] { return cuda::map_text(map, layout, call.pack); }, 1, call.arguments,
          gpu().handle(), false));
      gpu().synchronize();
      for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(static_cast<int>(functions[first + i]));
        CHECK(distance(to_numbers(found[i]), to_numbers(expected[i])) <= apart(dtype));
      }
    }
  }
}

}  // namespace starling::tests
