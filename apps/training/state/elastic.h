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

// A run that goes on with another number of ranks: `--resume … --elastic`. The ranks that made the
// checkpoint become one, as they do where sync.switch changes the algorithm: parameters, optimizer
// states and buffers are their mean. What an algorithm kept of each rank goes.

namespace starling {

/// A checkpoint's files, of the ranks i with i % size == rank for this rank of the world, in that
/// order, with their paths.
using RankFiles = std::vector<std::pair<std::string, SafetensorsFile>>;

/// State that a rank of a run of `made` ranks would have saved if all had been equal to their mean.
/// It is the same on every rank but for the losses, which are of its own files. `weighted`: the
/// names of parameters, whose mean goes by each rank's weight (Algorithm::mean_weight). A file that
/// has other tensors than rank 0's, or is of a program that saved no weights where they are needed
/// (`needs_weights`), is Error(kUsage). Collective.
SafetensorsFile mean_of_ranks(RankFiles files, int made, const std::set<std::string>& weighted,
                              bool needs_weights, World& world);
/// Whether a state is such a mean, in which no rank's own part of an algorithm is.
bool is_mean_of_ranks(const SafetensorsFile& file);

/// The stretches of the run that made a checkpoint; `config` is what its resolved config says.
std::vector<Stretch> saved_stretches(const SafetensorsFile& file, const std::string& source);
void save_stretches(const std::vector<Stretch>& stretches, SafetensorsFile& file);
/// The stretches of a run that goes on from `step` with so many ranks: with batches of this size,
/// or where it is 0 of the one that `elastic` wants.
std::vector<Stretch> continued(std::vector<Stretch> stretches, std::int64_t step, int ranks,
                               const ElasticSettings& elastic, std::int64_t batch_size = 0);
/// "going on from step 6 with 3 ranks in place of 4: batch_size 43 in place of 32, 129 samples an
/// update in place of 128"
std::string text_of(const std::vector<Stretch>& stretches, const RunLength& length,
                    std::int64_t accumulate, const ElasticSettings& elastic);

}  // namespace starling
