#pragma once

#include "core/operations/norms.h"
#include "layers/functions.h"
#include "layers/norm_statistics.h"

// Batch norm over the batches of all ranks, of equal size, with sums over ranks between the steps.
// Does what the backend's own batch norm does with the same arguments in training. As in
// torch.nn.SyncBatchNorm the gradients of gamma and beta are sums over this rank's batch only.
namespace starling::functions::detail {

void synchronized_forward(const BatchNormForward& args, RankSums& ranks, Backend& backend);
void synchronized_backward(const BatchNormBackward& args, RankSums& ranks, Backend& backend);

}  // namespace starling::functions::detail
