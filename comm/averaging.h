#pragma once

#include <vector>

#include "comm/bucket.h"
#include "comm/transport.h"

namespace starling {

/// out[k] = (Σ over ranks of in[k]) / n, summed in rank order: the mean model of semantics.md
/// section 5. fp32 or fp64; out[k] has in[k]'s size and does not overlap it. Collective. Works in
/// pieces, so that it needs little additional memory. Exchanges may be in flight.
void mean_model(Transport& transport, const std::vector<Tensor>& in,
                const std::vector<Tensor>& out);
/// The mean model in new tensors of in's shapes.
std::vector<Tensor> mean_model(Transport& transport, const std::vector<Tensor>& in);

/// sqrt(mean over ranks of ‖x_i - x̄‖²), in fp64.
struct ConsensusDistance {
  double total = 0.0;
  std::vector<double> per_bucket;
};
/// The distance of the ranks' parameters from their mean; mean[b] is bucket b's, from mean_model().
/// Collective. Padding is excluded. `all`: where ranks have a part of the parameters each
/// (Bucket::own), all of them; `transport` is then between those with the same part.
ConsensusDistance consensus_distance(Transport& transport, Backend& backend,
                                     const std::vector<Bucket>& buckets,
                                     const std::vector<Tensor>& mean, Transport* all = nullptr);

}  // namespace starling
