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

/// Section `data`: the data set, and how its samples are read, distributed to ranks and augmented.
struct DataSettings {
  std::unique_ptr<Dataset> dataset;
  CachedDataset* cache = nullptr;  ///< non-owning, set if data.cache is on
  DatasetInfo info;                ///< dataset->info()
  std::shared_ptr<Sampler> sampler;
  int threads = 0;  ///< for reading and decoding samples; 0: the cores that computation leaves free
  bool shuffle = true;
  Augmenters augment;
  double dirichlet_alpha = 0.0;  ///< of a label-skewed partition; 0: no partition
};

/// What the data set is used for other than training.
struct DataUse {
  std::string tested_model;    ///< path of the model to test; empty: training
  bool training_rows = false;  ///< also evaluate the tested model on training samples
  std::string initial_model;   ///< path of the model that training starts from (`init`)
  bool skips_initial = false;  ///< some of its tensors are not used
  bool opens = false;          ///< false in a dry run, which does not open the data set
};

/// Reads the section, and `task.type`, which some data sets need. Does not open the data set.
DataSettings read_data(ConfigSection& root, std::uint64_t seed, const RankLayout& site,
                       const DataUse& use = {});

}  // namespace starling
