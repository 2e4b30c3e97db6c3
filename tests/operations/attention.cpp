#include "core/operations/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/math/dropout.h"
#include "tests/operations/rows.h"

// Attention and rotary position embeddings.
namespace starling::tests {

namespace {

constexpr std::uint64_t kKey = 5, kCounter = 9;
constexpr double kNone = -std::numeric_limits<double>::infinity();

Shape mask_shape(const AttentionRow& row) {
  if (row.mask == AttentionRow::Mask::kKeys) return {row.samples, 1, 1, row.keys};
  return {row.samples, row.heads, row.queries, row.keys};
}
/// Eighths, which every type holds, and here and there -infinity.
Numbers mask_of(const AttentionRow& row) {
  Numbers mask = random_numbers(mask_shape(row).elements(), 31);
  for (std::size_t i = 0; i < mask.size(); ++i) {
    mask[i] = mask[i] > 0.6 ? kNone : std::round(mask[i] * 8.0) / 8.0;
    if (row.mask == AttentionRow::Mask::kScores && i / at(row.keys) % at(row.queries) == 1)
      mask[i] = kNone;
  }
  return mask;
}

/// The places of all samples' tokens in their documents.
Numbers positions_of(const AttentionRow& row) {
  Numbers positions;
  for (Index n = 0; n < row.samples; ++n) {
    for (std::size_t d = 0; d < row.documents.size(); ++d) {
      const Index length = row.documents[(d + at(n)) % row.documents.size()];
      for (Index t = 0; t < length; ++t) positions.push_back(static_cast<double>(t));
    }
  }
  return positions;
}

/// Element of queries (0), keys (1) or values (2) at n, h, t, d.
using Element = std::function<double(int part, Index n, Index h, Index t, Index d)>;
using Result = std::function<double&(Index n, Index h, Index t, Index d)>;

void reference(const AttentionRow& row, const Element& x, const Result& y, Numbers& lse) {
  const Numbers mask = row.mask == AttentionRow::Mask::kNone ? Numbers() : mask_of(row);
  const Numbers positions = positions_of(row);
  const double scale = 1.0 / std::sqrt(static_cast<double>(row.depth));
  for (Index i = 0; i < row.samples * row.heads * row.queries; ++i) {
    const Index t = i % row.queries, h = i / row.queries % row.heads,
                n = i / row.queries / row.heads, kv = h / (row.heads / row.kv_heads),
                keys = row.causal ? std::min(row.keys, t + 1) : row.keys,
                begin = positions.empty()
                            ? 0
                            : t - static_cast<Index>(positions[at(n * row.queries + t)]),
                first = std::max(begin, row.window > 0 ? t + 1 - row.window : 0);
    Numbers scores(at(keys), kNone);
    double most = kNone, sum = 0.0;
    for (Index j = first; j < keys; ++j) {
      double& score = scores[at(j)] = 0.0;
      for (Index d = 0; d < row.depth; ++d) score += x(0, n, h, t, d) * x(1, n, kv, j, d);
      score *= scale;
      if (row.mask == AttentionRow::Mask::kKeys) score += mask[at(n * row.keys + j)];
      if (row.mask == AttentionRow::Mask::kScores) score += mask[at(i * row.keys + j)];
      most = std::max(most, score);
    }
    for (double& score : scores) sum += score = std::exp(score - (most == kNone ? 0.0 : most));
    lse[at(i)] = sum == 0.0 ? -kNone : most + std::log(sum);
    for (Index d = 0; d < row.depth; ++d) y(n, h, t, d) = 0.0;
    for (Index j = 0; j < keys && sum != 0.0; ++j) {
      const Index place = i * row.keys + j;
      double weight = scores[at(j)] / sum;
      if (row.p > 0.0) {
        const bool kept = math::dropout_mask(kKey, kCounter, static_cast<std::uint64_t>(place / 4),
                                             static_cast<float>(row.p))
                              .keep[place % 4];
        weight = kept ? weight / (1.0 - row.p) : 0.0;
      }
      for (Index d = 0; d < row.depth; ++d) y(n, h, t, d) += weight * x(2, n, kv, j, d);
    }
  }
}

/// The arguments that both passes have.
void set(Attention& args, const AttentionRow& row, const Tensors& saved) {
  if (row.mask != AttentionRow::Mask::kNone) {
    const View mask(saved[0]);
    const bool keys = row.mask == AttentionRow::Mask::kKeys;
    args.mask = View(saved[0], {row.samples, row.heads, row.queries, row.keys},
                     {mask.stride(0), keys ? 0 : mask.stride(1), keys ? 0 : mask.stride(2), 1}, 0);
  }
  args.causal = row.causal, args.window = row.window;
  if (!row.documents.empty()) args.positions = saved.back();
  args.scale = 1.0 / std::sqrt(static_cast<double>(row.depth));
  args.p = row.p, args.key = kKey, args.counter = kCounter;
}
void make_mask(Backend& backend, const AttentionRow& row, DType dtype, Tensors& saved) {
  if (!saved.empty()) return;
  if (row.mask != AttentionRow::Mask::kNone)
    saved.push_back(to_tensor(backend, mask_of(row), mask_shape(row), dtype));
  if (!row.documents.empty())
    saved.push_back(
        to_tensor(backend, positions_of(row), {row.samples, row.queries}, DType::kInt32));
}

std::string text_of(const AttentionRow& row) {
  return fmt::format(
      "{} samples, {} heads of {} ({} of keys), {} by {}{}{}{}{}{}", row.samples, row.heads,
      row.depth, row.kv_heads, row.queries, row.keys, row.causal ? ", causal" : "",
      row.window > 0 ? fmt::format(", window {}", row.window) : "",
      row.documents.empty() ? "" : fmt::format(", {} documents", row.documents.size()),
      row.mask == AttentionRow::Mask::kNone ? "" : ", masked", row.p > 0.0 ? ", dropout" : "");
}

}  // namespace

Operation attention(const AttentionRow& row) {
  Operation op;
  op.name = "attention, " + text_of(row);
  const Shape queries{row.samples, row.heads, row.queries, row.depth},
      keys{row.samples, row.kv_heads, row.keys, row.depth};
  op.inputs = {queries, keys, keys};
  op.outputs = {queries, {row.samples, row.heads, row.queries}};
  op.output_roles = {Role::kActivation, Role::kParameter};
  op.carried = 2;  // of the result, from which the backward pass goes back
  op.forward = [row](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    make_mask(b, row, in[0].dtype(), saved);
    AttentionForward args;
    set(args, row, saved);
    args.q = in[0], args.k = in[1], args.v = in[2], args.y = out[0], args.lse = out[1];
    b.attention_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    reference(
        row,
        [&](int part, Index n, Index h, Index t, Index d) {
          const Shape& shape = part == 0 ? queries : keys;
          return in[at(part)][at(((n * shape[1] + h) * shape[2] + t) * row.depth + d)];
        },
        [&](Index n, Index h, Index t, Index d) -> double& {
          return out[0][at(((n * row.heads + h) * row.queries + t) * row.depth + d)];
        },
        out[1]);
  };
  op.backward = [row](Backend& b, const Tensors& in, const Tensors& out, const Tensors& saved,
                      const Tensor& dy, const Tensors& d) {
    AttentionBackward args;
    set(args, row, saved);
    args.q = in[0], args.k = in[1], args.v = in[2], args.y = out[0], args.lse = out[1];
    args.dy = dy, args.dq = d[0], args.dk = d[1], args.dv = d[2];
    b.attention_backward(args);
  };
  return op;
}

Operation packed_attention(const AttentionRow& row) {
  const Index all = row.heads + 2 * row.kv_heads;
  Operation op = attention(row);
  op.name = "attention of one tensor, " + text_of(row);
  op.inputs = {{row.samples, row.queries, all * row.depth}};
  op.outputs[0] = {row.samples, row.queries, row.heads * row.depth};
  const auto heads = [=](const Tensor& x, Index first, Index count) {
    return View(x).split(2, row.depth).slice(2, first, count).transposed(1, 2);
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    AttentionForward args;
    set(args, row, {});
    args.q = heads(in[0], 0, row.heads), args.k = heads(in[0], row.heads, row.kv_heads);
    args.v = heads(in[0], row.heads + row.kv_heads, row.kv_heads);
    args.y = heads(out[0], 0, row.heads), args.lse = out[1];
    b.attention_forward(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    reference(
        row,
        [&](int part, Index n, Index h, Index t, Index d) {
          const Index head = h + (part == 0 ? 0 : row.heads) + (part == 2 ? row.kv_heads : 0);
          return in[0][at(((n * row.queries + t) * all + head) * row.depth + d)];
        },
        [&](Index n, Index h, Index t, Index d) -> double& {
          return out[0][at(((n * row.queries + t) * row.heads + h) * row.depth + d)];
        },
        out[1]);
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors& out, const Tensors&,
                    const Tensor& dy, const Tensors& d) {
    AttentionBackward args;
    set(args, row, {});
    args.q = heads(in[0], 0, row.heads), args.k = heads(in[0], row.heads, row.kv_heads);
    args.v = heads(in[0], row.heads + row.kv_heads, row.kv_heads);
    args.y = heads(out[0], 0, row.heads), args.lse = out[1], args.dy = heads(dy, 0, row.heads);
    args.dq = heads(d[0], 0, row.heads), args.dk = heads(d[0], row.heads, row.kv_heads);
    args.dv = heads(d[0], row.heads + row.kv_heads, row.kv_heads);
    b.attention_backward(args);
  };
  return op;
}

Operation rotary(Index rows, Index width, Index positions, Index repeat, bool interleaved,
                 std::optional<Index> first, bool scaled) {
  Operation op;
  op.name = fmt::format("rotary {}x{}, {} positions{}, {} times each{}{}", rows, width, positions,
                        first ? fmt::format(" from {} on", *first) : "", repeat,
                        interleaved ? ", interleaved" : "", scaled ? ", scaled" : "");
  op.inputs = {{rows, width}};
  op.outputs = {{rows, width}};
  op.input_roles = {Role::kActivation};
  if (!first) {
    op.inputs.push_back({positions});
    op.input_roles.push_back(Role::kIndex);
    op.bounds = {0, 3000};
  }
  RotaryFrequencies frequencies(500.0);
  if (scaled) frequencies.factor = 8.0, frequencies.context = 300.0;
  const auto turn = [=](const Tensors& in, const Tensor& x, const Tensor& y) {
    return Rotary{.x = x,
                  .positions = first ? Tensor() : in[1],
                  .y = y,
                  .first = first.value_or(0),
                  .count = positions,
                  .frequencies = frequencies,
                  .repeat = repeat,
                  .interleaved = interleaved};
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.rotary(turn(in, in[0], out[0]));
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index r = 0; r < rows; ++r) {
      for (Index i = 0; i < width / 2; ++i) {
        const Index a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + width / 2;
        const Index place = r / repeat % positions;
        const double position = first ? static_cast<double>(*first + place) : in[1][at(place)];
        const double full =
            std::pow(500.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
        const double share = std::clamp((300.0 * full / 6.283185307179586 - 1.0) / 3.0, 0.0, 1.0);
        const double angle = position * (scaled ? share * full + (1.0 - share) * full / 8.0 : full),
                     x = in[0][at(r * width + a)], y = in[0][at(r * width + b)];
        out[0][at(r * width + a)] = x * std::cos(angle) - y * std::sin(angle);
        out[0][at(r * width + b)] = y * std::cos(angle) + x * std::sin(angle);
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors& in, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    Rotary back = turn(in, dy, d[0]);
    back.inverse = true;
    b.rotary(back);
  };
  return op;
}

}  // namespace starling::tests
