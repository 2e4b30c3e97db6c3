#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/operations/codecs.h"
#include "tests/operations/rows.h"

namespace starling::tests {
namespace {

/// What a message holds, number by number, in fp32.
std::vector<float> decoded(const Numbers& x, Code code, Index block) {
  std::vector<float> result(x.begin(), x.end());
  if (code == Code::kNone) return result;
  if (code == Code::kBf16) {
    for (float& v : result) {
      const auto bits = std::bit_cast<std::uint32_t>(v);
      v = std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
    }
    return result;
  }
  const std::size_t size = block == 0 ? result.size() : at(block);
  for (std::size_t first = 0; first < result.size(); first += size) {
    const auto begin = result.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end =
        result.begin() + static_cast<std::ptrdiff_t>(std::min(first + size, result.size()));
    const float least = *std::min_element(begin, end), most = *std::max_element(begin, end);
    if (code == Code::kInt8) {
      const float scale = std::max(std::fabs(least), std::fabs(most)) / 127.0f;
      std::for_each(begin, end, [&](float& v) {
        v = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(v / scale), -127.0f, 127.0f) * scale;
      });
    } else {
      volatile float range = most - least;  // no fused multiply-add
      const float scale = 255.0f / (range + 1e-7f), top = std::nearbyint(most * scale),
                  lower = top - 255.0f;
      std::for_each(begin, end, [&](float& v) {
        const float level = std::min(std::nearbyint(v * scale), top);
        v = (std::clamp(level - lower, 0.0f, 255.0f) + lower) / scale;
      });
    }
  }
  return result;
}

}  // namespace

Operation coded_sum(Index n, Code code, Index block, bool accumulate) {
  constexpr std::array kNames{"no code", "bf16", "int8", "minmax8"};
  Operation op;
  op.name = fmt::format("decoded sum of {} in {}, block {}{}", n,
                        kNames[static_cast<std::size_t>(code)], block, accumulate ? ", added" : "");
  op.inputs = {{n}, {n}};
  op.outputs = {{n}};
  op.input_roles = {Role::kParameter, Role::kParameter};
  op.output_roles = {Role::kParameter};
  op.aligned = true;
  op.loose = {0, 1, 2};  // fp32 or fp64
  op.fit = [](std::vector<Numbers>& in) {
    // with blocks of 32, a range of nothing
    for (std::size_t i = 32; i < std::min<std::size_t>(64, in[0].size()); ++i) in[0][i] = 0.0;
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    const std::int64_t bytes = message_bytes(code, in[0].dtype(), n, block);
    while (saved.size() < 2) saved.emplace_back(b, Shape{bytes}, DType::kUInt8);
    for (std::size_t k = 0; k < 2; ++k)
      b.encode({.x = in[k], .message = saved[k], .code = code, .block = block});
    if (accumulate) b.copy(in[0], out[0]);
    b.decode({.messages = {saved[0], saved[1]},
              .weight = {0.5, -2.0},
              .terms = 2,
              .out = out[0],
              .code = code,
              .block = block,
              .divisor = 3.0,
              .accumulate = accumulate});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const std::vector<float> a = decoded(in[0], code, block), b = decoded(in[1], code, block);
    for (std::size_t i = 0; i < a.size(); ++i)
      out[0][i] = ((accumulate ? in[0][i] : 0.0) + 0.5 * static_cast<double>(a[i]) -
                   2.0 * static_cast<double>(b[i])) /
                  3.0;
  };
  return op;
}

}  // namespace starling::tests
