#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/attention.h"
#include "core/operations/checker.h"
#include "layers/functions.h"
#include "layers/key_value_cache.h"

// Attention. Heads are strided views, without copies.
namespace starling::functions {

namespace {

using Heads = std::array<View, 3>;  ///< queries, keys and values, as N×H×T×D
/// Views of the heads in the inputs, or in tensors of their gradients.
using Split = std::function<Heads(const std::vector<Tensor>&)>;

struct Settings {
  AttentionMask places;
  std::optional<double> scale;
  double dropout;
};

/// The mask, broadcast to the shape of the scores.
View mask_view(std::string_view name, const Tensor& mask, const Shape& scores, DType dtype) {
  if (!mask) return {};
  const int more = scores.rank() - mask.shape().rank();
  std::array<std::int64_t, 4> stride{};
  bool fits = more >= 0 && mask.dtype() == dtype;
  const View whole(mask);
  for (int d = std::max(more, 0); d < 4 && fits; ++d) {
    const std::int64_t size = mask.shape()[d - more];
    fits = size == 1 || size == scores[d];
    stride[static_cast<std::size_t>(d)] = size == 1 ? 0 : whole.stride(d - more);
  }
  if (!fits)
    fail(ExitCode::kUsage, name, "a mask {} {} does not broadcast to scores {} {}",
         name_of(mask.dtype()), mask.shape().text(), name_of(dtype), scores.text());
  return View(mask, scores, {stride[0], stride[1], stride[2], stride[3]}, 0);
}

double usual_scale(const Shape& queries) {
  return 1.0 / std::sqrt(static_cast<double>(queries[3]));
}

/// Attention of new tokens to those in the cache and to each other; adds them to the cache.
Variable attend_with_cache(std::string_view name, KeyValueCache& cache, const Heads& heads,
                           const Shape& out, const std::function<View(const Tensor&)>& merge,
                           const Settings& how, bool causal, Pass& pass) {
  const View& q = heads[0];
  const Shape &queries = q.shape(), &keys = heads[1].shape();
  if (!causal || pass.tape || queries[2] != keys[2])
    fail(ExitCode::kUsage, name,
         "{} queries and {} keys behind others; needed: causal attention of tokens to themselves "
         "and those before, without a mask or a tape",
         queries.text(), keys.text());
  const KeyValueCache::Heads all = cache.append(heads[1], heads[2]);
  const Tensor y(pass.backend, out, q.dtype());
  const std::int64_t before = cache.tokens(), count = queries[2];
  // A single query attends to all keys of its window, so it needs no mask.
  const std::int64_t at_once = before == 0 ? count : 1;
  for (std::int64_t i = 0; i < count; i += at_once) {
    AttentionForward args;
    args.q = q.slice(2, i, at_once);
    const std::int64_t end = before + i + at_once, window = how.places.window,
                       first =
                           before > 0 && window > 0 ? std::max<std::int64_t>(end - window, 0) : 0;
    args.k = all.keys.slice(2, first, end - first);
    args.v = all.values.slice(2, first, end - first);
    if (before == 0) static_cast<AttentionMask&>(args) = how.places;
    args.scale = how.scale.value_or(usual_scale(queries));
    args.y = merge(y).slice(2, i, at_once);
    args.lse = Tensor(pass.backend, {queries[0], queries[1], at_once}, wide_of(q.dtype()));
    pass.backend.attention_forward(args);
  }
  return Variable(y);
}

/// Attention of the heads that `split` finds in the inputs, as a tensor of shape `out`, whose heads
/// `merge` views.
Variable attend(std::string_view name, const std::vector<Variable>& inputs, const Split& split,
                const Shape& out, const std::function<View(const Tensor&)>& merge,
                const Tensor& mask, const Settings& how, Pass& pass) {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  for (const Variable& input : inputs) {
    tensors.push_back(input.value());
    shapes.push_back(input.shape());
  }
  const DType dtype = tensors.front().dtype();
  const auto [q, k, v] = split(tensors);
  const Shape &queries = q.shape(), &keys = k.shape();
  if (auto* const cache = pass.find<KeyValueCache>())
    return attend_with_cache(name, *cache, {q, k, v}, out, merge, how, !mask && how.places.causal,
                             pass);
  AttentionForward args;
  args.q = q, args.k = k, args.v = v;
  args.mask = mask_view(name, mask, {queries[0], queries[1], queries[2], keys[2]}, dtype);
  static_cast<AttentionMask&>(args) = how.places;
  if (args.causal) args.positions = pass.positions;
  args.scale = how.scale.value_or(usual_scale(queries));
  if (pass.training && how.dropout > 0.0) {
    args.p = how.dropout;
    args.key = pass.dropout_key;
    args.counter = pass.dropout_counter++;
  }
  const Tensor y(pass.backend, out, dtype);
  args.y = merge(y);
  args.lse = Tensor(pass.backend, {queries[0], queries[1], queries[2]}, wide_of(dtype));
  pass.backend.attention_forward(args);
  auto backward = [saved = static_cast<const Attention&>(args), y, lse = args.lse, shapes, split,
                   merge](Gradients& g) {
    std::vector<Tensor> gradients;
    for (const Shape& shape : shapes) gradients.emplace_back(g.backend(), shape, y.dtype());
    AttentionBackward back;
    static_cast<Attention&>(back) = saved;
    back.y = merge(y), back.dy = merge(g.output());
    back.lse = lse;
    const Heads heads = split(gradients);
    back.dq = heads[0], back.dk = heads[1], back.dv = heads[2];
    g.backend().attention_backward(back);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (g.wants(static_cast<int>(i))) g.set(static_cast<int>(i), std::move(gradients[i]));
  };
  return pass.record(name, y, inputs, {}, std::move(backward));
}

View as_it_lies(const Tensor& x) { return x; }
/// N×T×H×D as N×H×T×D.
View by_head(const Tensor& x) { return View(x).transposed(1, 2); }

}  // namespace

Variable scaled_dot_product_attention(const Variable& q, const Variable& k, const Variable& v,
                                      const Tensor& mask, AttentionMask places,
                                      std::optional<double> scale, double dropout, Pass& pass,
                                      HeadsAt heads) {
  constexpr std::string_view kName = "scaled_dot_product_attention";
  const auto of = [](const Variable& x) {
    return fmt::format("{} {}", name_of(x.dtype()), x.shape().text());
  };
  const bool third = heads == HeadsAt::kThird;
  const int head = third ? 2 : 1;
  const Shape &queries = q.shape(), &keys = k.shape();
  if (queries.rank() != 4 || keys.rank() != 4 || v.shape() != keys || q.dtype() != k.dtype() ||
      q.dtype() != v.dtype() || !is_floating(q.dtype()) || queries[0] != keys[0] ||
      queries[3] != keys[3] || queries[3] == 0) {
    fail(ExitCode::kUsage, kName,
         "queries {}, keys {} and values {}; needed: {} of one floating dtype, alike but for heads "
         "and places of keys and values",
         of(q), of(k), of(v), third ? "N×T×H×D" : "N×H×T×D");
  }
  if (keys[head] == 0 || queries[head] % keys[head] != 0)
    fail(ExitCode::kUsage, kName, "the {} heads of queries {} are no multiple of the {} of keys {}",
         queries[head], queries.text(), keys[head], keys.text());
  const auto view = third ? by_head : as_it_lies;
  return attend(
      kName, {q, k, v},
      [view](const std::vector<Tensor>& x) {
        return Heads{view(x[0]), view(x[1]), view(x[2])};
      },
      queries, view, mask, {places, scale, dropout}, pass);
}

Variable packed_attention(const Variable& qkv, std::int64_t heads, std::int64_t kv_heads,
                          const Tensor& mask, AttentionMask places, std::optional<double> scale,
                          double dropout, Pass& pass) {
  constexpr std::string_view kName = "packed_attention";
  const Shape& in = qkv.shape();
  const std::int64_t all = heads + 2 * kv_heads;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
    fail(ExitCode::kUsage, kName, "{} heads of queries are no multiple of {} of keys", heads,
         kv_heads);
  if (in.rank() != 3 || in[2] == 0 || in[2] % all != 0 || !is_floating(qkv.dtype()))
    fail(ExitCode::kUsage, kName,
         "the input is {} {}; needed: floating N×T×C, C a multiple of {}, the heads of queries, "
         "keys and values",
         name_of(qkv.dtype()), in.text(), all);
  const std::int64_t depth = in[2] / all;
  return attend(
      kName, {qkv},
      [=](const std::vector<Tensor>& x) {
        const View each = View(x[0]).split(2, depth).transposed(1, 2);
        return Heads{each.slice(1, 0, heads), each.slice(1, heads, kv_heads),
                     each.slice(1, heads + kv_heads, kv_heads)};
      },
      {in[0], in[1], heads * depth},
      [depth](const Tensor& y) { return View(y).split(2, depth).transposed(1, 2); }, mask,
      {places, scale, dropout}, pass);
}

namespace {

/// `turn`: all arguments except x and y.
Variable turned(const Variable& x, const Rotary& turn, Pass& pass) {
  const Tensor y(pass.backend, x.shape(), x.dtype());
  Rotary args = turn;
  args.x = x.value(), args.y = y;
  pass.backend.rotary(args);
  return pass.record("rotary", y, {x}, {}, [turn](Gradients& g) {
    Rotary back = turn;
    back.x = g.output();
    back.y = Tensor(g.backend(), back.x.shape(), back.x.dtype());
    back.inverse = true;
    g.backend().rotary(back);
    g.set(0, back.y);
  });
}

}  // namespace

Variable rotary(const Variable& x, const Tensor& positions, const RotaryFrequencies& frequencies,
                bool interleaved, Pass& pass) {
  const Shape &in = x.shape(), &at = positions.shape();
  if (positions.dtype() != DType::kInt32 || !is_floating(x.dtype()) || in.rank() < 1 ||
      in.back() % 2 != 0)
    fail(ExitCode::kUsage, "rotary",
         "x is {} {}, the positions {} {}; needed: floating rows of pairs, int32",
         name_of(x.dtype()), in.text(), name_of(positions.dtype()), at.text());
  // The positions' dimensions are adjacent in x; dimensions after and before them are broadcast.
  enum { kBehind, kWithin, kBefore } where = kBehind;
  std::int64_t repeat = 1;
  const int more = in.rank() - 1 - at.rank();
  bool fits = more >= 0;
  for (int d = in.rank() - 1; d-- > 0 && fits;) {
    const std::int64_t own = d >= more ? at[d - more] : 1;
    if (own != 1) {
      fits = own == in[d] && where != kBefore;
      where = kWithin;
    } else if (in[d] != 1) {
      if (where == kBehind) repeat *= in[d];
      if (where == kWithin) where = kBefore;
    }
  }
  if (!fits)
    fail(ExitCode::kUsage, "rotary",
         "positions {} do not go with the rows of {}; needed: neighbouring dimensions of them, and "
         "1 for others",
         at.text(), in.text());
  const Rotary turn{.positions = positions,
                    .frequencies = frequencies,
                    .repeat = repeat,
                    .interleaved = interleaved};
  return turned(x, turn, pass);
}

Variable rotary(const Variable& x, int dim, std::int64_t first,
                const RotaryFrequencies& frequencies, bool interleaved, Pass& pass) {
  const Shape& in = x.shape();
  const int d = dimension("rotary", in, dim), last = in.rank() - 1;
  if (!is_floating(x.dtype()) || d == last || in.back() % 2 != 0)
    fail(ExitCode::kUsage, "rotary",
         "x is {} {}, with positions along dimension {}; needed: floating rows of pairs, and "
         "positions along another dimension than theirs",
         name_of(x.dtype()), in.text(), d);
  Rotary turn{
      .first = first, .count = in[d], .frequencies = frequencies, .interleaved = interleaved};
  for (int behind = d + 1; behind < last; ++behind) turn.repeat *= in[behind];
  return turned(x, turn, pass);
}

}  // namespace starling::functions
