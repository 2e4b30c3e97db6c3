#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "apps/data/loader.h"

namespace starling {

/// The samples of a rank in an epoch, in order, without data.partition: by default positions rank,
/// rank + ranks, … of the epoch's permutation, floor(samples / ranks) of them.
inline std::vector<std::int64_t> epoch_samples(std::int64_t samples, const LoaderSettings& settings,
                                               std::int64_t epoch) {
  const std::shared_ptr<const Sampler> sampler =
      settings.sampler ? settings.sampler : make_shuffle_sampler();
  return sampler->epoch({.seed = settings.seed,
                         .epoch = epoch,
                         .shuffle = settings.shuffle,
                         .samples = samples,
                         .batch_size = settings.batch_size,
                         .rank = settings.rank,
                         .ranks = settings.ranks});
}

}  // namespace starling
