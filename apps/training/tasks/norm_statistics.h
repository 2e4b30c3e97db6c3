#pragma once

#include <cstdint>
#include <string>

#include "apps/data/loader.h"
#include "apps/training/tasks/task.h"
#include "layers/layer.h"

namespace starling {

/// Whether a buffer is the running mean or variance of a batch norm.
bool is_norm_statistic(const std::string& buffer);
/// Whether it counts a batch norm's batches.
bool is_norm_counter(const std::string& buffer);

/// Puts into the model's batch norms, in memory of their own, the statistics of so many training
/// batches that `loader` gives next: each norm's cumulative average, as
/// torch.optim.swa_utils.update_bn computes it. Dropout drops as in training, by `seed`. Which
/// memory the buffers had before, whoever calls this puts back.
void recalibrate(const Task& task, Model& model, Loader& loader, std::int64_t batches,
                 std::uint64_t seed, Backend& backend);

}  // namespace starling
