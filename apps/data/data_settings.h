#pragma once

#include <cstdint>
#include <memory>

#include "apps/data/augment.h"
#include "apps/data/cached.h"
#include "apps/data/dataset.h"
#include "apps/data/sampler.h"
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

/// What the data set is for beside training.
struct DataUse {
  std::string tested_model;    ///< file of a model that is tested; empty: something is trained
  bool training_rows = false;  ///< of it: outputs on training samples are wanted, too
  std::string initial_model;   ///< of `init`
  bool skips_initial = false;  ///< some of its tensors are left out
  bool opens = false;          ///< it will be opened: no dry run
};

/// Reads it, and of `task` the type, which data sets may ask for. The data set is not opened.
DataSettings read_data(ConfigSection& root, std::uint64_t seed, const RankLayout& site,
                       const DataUse& use = {});

}  // namespace starling
