#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/schedules/run_length.h"
#include "apps/training/state/state_settings.h"
#include "comm/world.h"
#include "core/safetensors.h"

// Continuing a run with another number of ranks: parameters, optimizer states and buffers are
// averaged over the ranks that made the checkpoint; per-rank states of the algorithm are discarded.

namespace starling {

/// The checkpoint files that this rank reads, with their paths: of ranks i with i % size == rank.
using RankFiles = std::vector<std::pair<std::string, SafetensorsFile>>;

/// The mean of the states saved by `made` ranks, equal on all ranks except for losses. `weighted`:
/// parameters that are averaged with the ranks' weights (Algorithm::mean_weight()). Error(kUsage)
/// if a file differs from rank 0's in form, or lacks weights although `needs_weights`. Collective.
SafetensorsFile mean_of_ranks(RankFiles files, int made, const std::set<std::string>& weighted,
                              bool needs_weights, World& world);
/// Whether a state is such a mean, or equal on all ranks: their algorithm restarts.
bool is_mean_of_ranks(const SafetensorsFile& file);
void mark_as_mean_of_ranks(SafetensorsFile& file, int ranks);

/// The stretches of the run that made a checkpoint; `config` is what its resolved config says.
std::vector<Stretch> saved_stretches(const SafetensorsFile& file, const std::string& source);
void save_stretches(const std::vector<Stretch>& stretches, SafetensorsFile& file);
/// Appends a stretch from `step` on, with this batch size, or if 0 the one according to `elastic`.
/// `ranks` may count replicas of `replica` ranks, whose batch is that of all of these: then as near
/// as `replica` divides.
std::vector<Stretch> continued(std::vector<Stretch> stretches, std::int64_t step, int ranks,
                               const ElasticSettings& elastic, std::int64_t batch_size = 0,
                               int replica = 1);
/// "elastic: from step 6 on 3 ranks in place of 4, batch_size 43 in place of 32, …"
std::string text_of(const std::vector<Stretch>& stretches, const RunLength& length,
                    std::int64_t accumulate, const ElasticSettings& elastic, int replica = 1);

}  // namespace starling
