#include "layers/multi_head_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/linear.h"
#include "layers/window.h"

namespace starling {

Shape MultiHeadAttention::build(const Shape& input) {
  if (input.rank() != 2 || input[1] % heads_ != 0)
    bad_shape(input, fmt::format("places×width, the width a multiple of {} heads,", heads_));
  const std::int64_t width = input[1], rows = width / heads_ * (heads_ + 2 * kv_heads_);
  // Xavier initialisation of the whole matrix
  const double limit = std::sqrt(6.0 / static_cast<double>(rows + width));
  in_weight_ = &add_parameter("in_proj_weight", {rows, width}, Init::uniform(limit));
  if (has_bias_) in_bias_ = &add_parameter("in_proj_bias", {rows}, Init::constant(0.0));
  out_ = &add_child("out_proj",
                    std::make_unique<Linear>(width, has_bias_, Linear::WeightInit::kDefault, true),
                    input);
  return input;
}

Variable MultiHeadAttention::compute(const Variable& x, Pass& pass) {
  const Variable qkv = functions::linear(x, *in_weight_, in_bias_, pass);
  return out_->forward(functions::packed_attention(qkv, heads_, kv_heads_, {}, causal_,
                                                   std::nullopt, dropout_, pass),
                       pass);
}

void builtin::add_multi_head_attention(LayerRegistry& registry) {
  registry.add(
      "multi_head_attention",
      [](ConfigSection& section) {
        const std::int64_t heads = section.required_integer(
            "num_heads", kSizeRange, "heads of queries; they divide the width");
        const std::int64_t kv_heads =
            section.integer("kv_heads", 0, Range::closed(0, 1 << 24),
                            "heads of keys and values, which divide num_heads; 0: as many");
        const bool causal = section.boolean("causal", false,
                                            "positions attend only to "
                                            "themselves and earlier ones");
        const double dropout = section.number("dropout", 0.0, Range::half_open(0, 1),
                                              "probability that a weight becomes 0 in training");
        const bool bias = section.boolean("bias", true, "add learned vectors to the projections");
        if (kv_heads != 0 && heads % kv_heads != 0)
          section.error("kv_heads", "{} does not divide num_heads {}", kv_heads, heads);
        return std::make_unique<MultiHeadAttention>(heads, kv_heads == 0 ? heads : kv_heads, causal,
                                                    dropout, bias);
      },
      "self-attention over the positions of a sequence {T, E}");
}

}  // namespace starling
