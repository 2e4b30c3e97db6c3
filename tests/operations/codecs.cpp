#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/backend.h"
#include "core/operations/codecs.h"
#include "core/operations/sparse.h"
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
    if (code == Code::kInt8 || code == Code::kInt4) {
      const float levels = code == Code::kInt8 ? 127.0f : 7.0f,
                  scale = std::max(std::fabs(least), std::fabs(most)) / levels;
      std::for_each(begin, end, [&](float& v) {
        v = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint(v / scale), -levels, levels) * scale;
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

constexpr std::array kNames{"no code", "bf16", "int8", "minmax8", "int4"};
const char* label(Code code) { return kNames[static_cast<std::size_t>(code)]; }

}  // namespace

Operation coded_rest(Index n, Code code, Index block, bool difference) {
  Operation op;
  op.name = fmt::format("{} with the residual in {}, block {}",
                        difference ? "difference" : "numbers", label(code), block);
  op.inputs = {{n}, {n}, {n}};
  op.outputs = {{n}, {n}};
  op.input_roles = {Role::kParameter, Role::kParameter, Role::kParameter};
  op.output_roles = {Role::kParameter, Role::kParameter};
  op.aligned = true;
  op.loose = {0, 1, 2, 3, 4};              // fp32 or fp64
  op.fit = [](std::vector<Numbers>& in) {  // so that v is exact in fp32, too
    for (Numbers& numbers : in)
      for (double& v : numbers) v = std::nearbyint(v * 1024.0) / 1024.0;
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty())
      saved.emplace_back(b, Shape{message_bytes(code, in[0].dtype(), n, block)}, DType::kUInt8);
    b.copy(in[2], out[0]);
    b.encode({.x = in[0],
              .message = saved[0],
              .code = code,
              .block = block,
              .minus = difference ? in[1] : Tensor(),
              .residual = out[0],
              .decay = 0.75});
    b.decode({.messages = {saved[0]},
              .weight = {1.0},
              .terms = 1,
              .out = out[1],
              .code = code,
              .block = block});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    Numbers v = in[0];
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += in[2][i] - (difference ? in[1][i] : 0.0);
    const std::vector<float> c = decoded(v, code, block);
    for (std::size_t i = 0; i < v.size(); ++i) {
      // What is whole in fp64 is not rounded to fp32.
      out[1][i] = code == Code::kNone ? v[i] : static_cast<double>(c[i]);
      out[0][i] = 0.75 * (v[i] - out[1][i]);
    }
  };
  return op;
}

Operation sparse_mean(Index n, Index block, double share, int bits, bool of_all, int copies) {
  // 7 elements behind the first part are a bucket's padding, and so are those behind the second.
  const std::vector<std::pair<Index, Index>> parts{{0, n / 2 - 7}, {n / 2, n / 2 - 32}};
  Operation op;
  op.name = fmt::format("sparse mean of {}, block {}, share {}, {} bits{}{}", n, block, share, bits,
                        of_all ? ", of all" : "",
                        copies > 1 ? fmt::format(", {} messages", 2 * copies) : "");
  op.inputs = {{n}, {n}, {n}};
  op.outputs = {{n}, {n}, {n}};
  op.input_roles = {Role::kParameter, Role::kParameter, Role::kParameter};
  op.output_roles = {Role::kParameter, Role::kParameter, Role::kParameter};
  op.aligned = true;
  op.loose = {0, 1, 2, 3, 4, 5};           // fp32 or fp64
  op.fit = [](std::vector<Numbers>& in) {  // v is exact in fp32, too, and some of its sizes equal
    for (Numbers& numbers : in)
      for (double& v : numbers) v = std::nearbyint(v * 64.0) / 64.0;
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    const SparseLayout layout(b, n, parts, block, share, bits);
    while (saved.size() < 2) saved.emplace_back(b, Shape{layout.bytes}, DType::kUInt8);
    b.copy(in[2], out[0]);
    b.copy(in[1], out[1]);
    b.sparse_encode({.x = in[0],
                     .message = saved[0],
                     .layout = layout,
                     .minus = in[1],
                     .residual = out[0],
                     .decay = 0.75});
    b.sparse_encode(
        {.x = in[2], .message = saved[1], .layout = layout, .residual = out[1], .decay = 1.0});
    std::vector<Tensor> messages;
    std::vector<float> weights;
    for (int k = 0; k < copies; ++k) {
      messages.insert(messages.end(), {saved[0], saved[1]});
      weights.insert(weights.end(), {2.0f, 3.0f});
    }
    b.sparse_decode({.messages = messages,
                     .weights = weights,
                     .out = out[2],
                     .layout = layout,
                     .of_all = of_all});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    Numbers sent[2] = {in[2], in[1]}, counts(at(n), 0.0);
    for (std::size_t i = 0; i < at(n); ++i) {
      sent[0][i] += in[0][i] - in[1][i], sent[1][i] += in[2][i];
      out[0][i] = in[2][i], out[1][i] = in[1][i], out[2][i] = 0.0;
    }
    for (std::size_t m = 0; m < 2; ++m) {
      for (const auto& [first, size] : parts) {
        for (Index begin = 0; begin < size; begin += block) {
          const Index elements = std::min(block, size - begin);
          std::vector<std::size_t> order;
          for (Index i = 0; i < elements; ++i) order.push_back(at(first + begin + i));
          const Numbers& v = sent[m];
          std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::fabs(v[a]) > std::fabs(v[b]);
          });
          const auto chosen =
              at(static_cast<Index>(std::ceil(share * static_cast<double>(elements))));
          const auto most = static_cast<float>(std::fabs(v[order[0]]));
          for (std::size_t k = 0; k < order.size(); ++k) {
            const std::size_t i = order[k];
            double c = 0.0;
            if (k < chosen) {
              const float levels = bits == 8 ? 127.0f : 7.0f, s = bits == 2 ? most : most / levels;
              const auto x = static_cast<float>(v[i]);
              if (s > 0.0f && bits == 2) {
                c = static_cast<double>(
                    (std::clamp(std::nearbyint((x / s + 1.0f) * 1.5f), 0.0f, 3.0f) / 1.5f - 1.0f) *
                    s);
              } else if (s > 0.0f) {
                c = static_cast<double>(std::nearbyint(x / s) * s);
              }
              const double weight = m == 0 ? 2.0 : 3.0;
              out[2][i] += weight * c;
              counts[i] += weight;
            }
            out[m][i] = (m == 0 ? 0.75 : 1.0) * (v[i] - c);
          }
        }
      }
    }
    for (std::size_t i = 0; i < at(n); ++i)
      if (counts[i] > 0.0) out[2][i] /= of_all ? 5.0 : counts[i];
  };
  return op;
}

Operation coded_sum(Index n, Code code, Index block, bool accumulate) {
  Operation op;
  op.name = fmt::format("decoded sum of {} in {}, block {}{}", n, label(code), block,
                        accumulate ? ", added" : "");
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
