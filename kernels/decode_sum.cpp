#include "kernels/decode_sum.h"

#include <cstddef>

#include "core/operations/codecs.h"
#include "core/operations/pointwise.h"

namespace starling {

void decode_sum(Backend& backend, const std::vector<Tensor>& messages, const EncodedTerms& terms,
                double factor, const Tensor& out, bool accumulate, double divisor) {
  Decode sum{.out = out, .code = terms.code, .block = terms.block, .accumulate = accumulate};
  for (std::size_t k = 0; k < messages.size(); ++k) {
    if (sum.terms == static_cast<int>(sum.messages.size())) {
      backend.decode(sum);
      sum.terms = 0;
      sum.accumulate = true;
    }
    sum.messages[static_cast<std::size_t>(sum.terms)] = messages[k];
    sum.weight[static_cast<std::size_t>(sum.terms++)] = factor * terms.weights[k];
  }
  sum.divisor = divisor;
  if (sum.terms > 0) backend.decode(sum);
}

void weighted_sum(Backend& backend, const std::vector<Tensor>& terms,
                  const std::vector<double>& weights, const Tensor& out) {
  WeightedSum sum{.in = {}, .weight = {}, .out = out};
  for (std::size_t k = 0; k < terms.size(); ++k) {
    sum.in[static_cast<std::size_t>(sum.terms)] = terms[k];
    sum.weight[static_cast<std::size_t>(sum.terms++)] = weights[k];
    if (sum.terms < static_cast<int>(sum.in.size()) && k + 1 < terms.size()) continue;
    backend.weighted_sum(sum);
    sum.accumulate = true;
    sum.terms = 0;
  }
}

}  // namespace starling
