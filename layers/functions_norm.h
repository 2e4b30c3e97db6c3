#pragma once

#include "core/operations/norms.h"
#include "layers/functions.h"
#include "layers/norm_statistics.h"

// The steps of a batch norm over all ranks' batches, of one size each, between which the ranks add
// up. They do what the backend's own batch norm does with the same arguments in training. As in
// torch.nn.SyncBatchNorm the gradients of gamma and beta are sums over this rank's batch alone.
namespace starling::functions::detail {

void synchronized_forward(const BatchNormForward& args, RankSums& ranks, Backend& backend);
void synchronized_backward(const BatchNormBackward& args, RankSums& ranks, Backend& backend);

}  // namespace starling::functions::detail
