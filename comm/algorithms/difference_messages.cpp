#include "comm/algorithms/difference_messages.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "kernels/decode_sum.h"

namespace starling {

std::string code_name(int number) {
  switch (number) {
    case static_cast<int>(Code::kNone): return "numbers as they are";
    case static_cast<int>(Code::kBf16): return "bf16";
    case static_cast<int>(Code::kInt8): return "int8";
    case static_cast<int>(Code::kInt4): return "int4";
    default: break;
  }
  const int bits = number - DifferenceCode::kSparse;
  return bits == 2 || bits == 4 || bits == 8 ? fmt::format("sparse, {} bits", bits)
                                             : fmt::format("an unknown code, {}", number);
}

DifferenceMessages::DifferenceMessages(const AlgorithmSite& site, DifferenceCode code)
    : backend_(site.backend), buckets_(site.buckets), code_(code) {
  if (!code_.sparse) return;
  for (const Bucket& bucket : buckets_) {
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (const BucketSlot& slot : bucket.layout->slots)
      parts.emplace_back(slot.offset, slot.elements);
    std::sort(parts.begin(), parts.end());
    layouts_.emplace_back(backend_, bucket.parameters.elements(), parts, code_.sparse->block,
                          code_.sparse->share, code_.sparse->value_bits);
  }
}

std::int64_t DifferenceMessages::bytes(int bucket) const {
  const auto b = static_cast<std::size_t>(bucket);
  if (code_.sparse) return layouts_[b].bytes;
  const Tensor& numbers = buckets_[b].parameters;
  return message_bytes(code_.compressor.code, numbers.dtype(), numbers.elements(),
                       code_.compressor.block);
}

void DifferenceMessages::encode(int bucket, const Tensor& numbers, const Tensor& minus,
                                const Tensor& residual, const Tensor& message) {
  if (code_.sparse) {
    backend_.sparse_encode({.x = numbers,
                            .message = message,
                            .layout = layouts_[static_cast<std::size_t>(bucket)],
                            .minus = minus,
                            .residual = residual,
                            .decay = code_.error_decay});
  } else {
    backend_.encode({.x = numbers,
                     .message = message,
                     .code = code_.compressor.code,
                     .block = code_.compressor.block,
                     .minus = minus,
                     .residual = residual,
                     .decay = code_.error_decay});
  }
}

void DifferenceMessages::mean(int bucket, const std::vector<Tensor>& messages,
                              const std::vector<double>& weights, const Tensor& out) {
  if (code_.sparse) {
    backend_.sparse_decode({.messages = messages,
                            .weights = {weights.begin(), weights.end()},
                            .out = out,
                            .layout = layouts_[static_cast<std::size_t>(bucket)],
                            .of_all = code_.sparse->of_all});
    return;
  }
  EncodedTerms terms{.code = code_.compressor.code, .block = code_.compressor.block};
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) terms.weights.push_back(weight / all);
  decode_sum(backend_, messages, terms, 1.0, out, false);
}

}  // namespace starling
