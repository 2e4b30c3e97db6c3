#pragma once

#include <cstdint>

#include "layers/layer.h"

namespace starling {

class Linear;

/// Multi-head self-attention (Vaswani et al. 2017, arXiv 1706.03762): {T, E} → {T, E}. Tensors and
/// initial values are those of torch.nn.MultiheadAttention: in_proj_weight ((H + 2·Hkv)·E/H × E)
/// and in_proj_bias, with rows of all queries, then of keys, then of values; out_proj.weight,
/// out_proj.bias. With fewer heads for keys and values than for queries these have fewer rows.
class MultiHeadAttention : public Layer {
 public:
  MultiHeadAttention(std::int64_t heads, std::int64_t kv_heads, bool causal, double dropout,
                     bool bias)
      : heads_(heads), kv_heads_(kv_heads), causal_(causal), dropout_(dropout), has_bias_(bias) {}

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::int64_t heads_, kv_heads_;
  bool causal_;
  double dropout_;
  bool has_bias_;
  Parameter *in_weight_ = nullptr, *in_bias_ = nullptr;
  Linear* out_ = nullptr;
};

}  // namespace starling
