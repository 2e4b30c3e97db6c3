#pragma once

#include <cstdint>
#include <string>

#include "apps/data/loader.h"
#include "apps/training/tasks/task.h"
#include "layers/layer.h"

namespace starling {

/// Whether a buffer is the running mean or variance of a batch norm.
bool is_norm_statistic(const std::string& buffer);

/// Recomputes the batch norms' statistics, in newly allocated buffers, as cumulative averages over
/// the next `batches` batches of `loader`, like torch.optim.swa_utils.update_bn. Dropout is active,
/// with `seed`. The caller restores the original buffers.
void recalibrate(const Task& task, Model& model, Loader& loader, std::int64_t batches,
                 std::uint64_t seed, Backend& backend);

}  // namespace starling
