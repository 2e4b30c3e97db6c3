#pragma once

#include <vector>

#include "core/backend.h"
#include "core/operations/codecs.h"

namespace starling {

/// Adds up messages: out = (factor · Σ_k weights[k] · what message k holds) / divisor, with
/// `accumulate` the sum begins with what out holds: any number of messages, by as many decodings as
/// that takes. On the current stream.
void decode_sum(Backend& backend, const std::vector<Tensor>& messages, const EncodedTerms& terms,
                double factor, const Tensor& out, bool accumulate, double divisor = 1.0);

/// Adds up tensors: out = Σ_k weights[k] · terms[k], any number of them, in their order. `out` is
/// none of those after the eighth. On the current stream.
void weighted_sum(Backend& backend, const std::vector<Tensor>& terms,
                  const std::vector<double>& weights, const Tensor& out);

}  // namespace starling
