#pragma once

#include <cstdint>
#include <memory>

#include "apps/trainer/data/augment.h"
#include "apps/trainer/data/cached.h"
#include "apps/trainer/data/dataset.h"
#include "apps/trainer/data/sampler.h"
#include "core/config.h"
#include "topology/topology.h"

namespace starling {

/// Section `data`: the data set, and how its samples are read, dealt and changed.
struct DataSettings {
  std::unique_ptr<Dataset> dataset;
  CachedDataset* cache = nullptr;  ///< `dataset`, with `data.cache`
  DatasetInfo info;                ///< the data set's
  std::shared_ptr<Sampler> sampler;
  int threads = 0;  ///< that read and decode samples; 0: what computing leaves over
  bool shuffle = true;
  Augmenters augment;
  double dirichlet_alpha = 0.0;  ///< of a label-skewed partition; 0: samples are shared
};

/// Reads it, and of `task` the type, which data sets may ask for. The data set is not opened.
DataSettings read_data(ConfigSection& root, std::uint64_t seed, const RankLayout& site);

}  // namespace starling
