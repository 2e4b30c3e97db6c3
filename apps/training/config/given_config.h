#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"

namespace starling {

/// The file that errors of a config name: the config, or the model file that holds it.
std::string source_of(const TrainOptions& options);

/// The config that a command line asks for, as it is written: its file, or that of the model under
/// test, with the values of --set and of the other options. Error(kUsage).
nlohmann::json given_config(const TrainOptions& options);
/// The same, read for the ranks of `site`. With --elastic another topology takes the place of one
/// that these ranks cannot have; the first rank reports that. Error(kUsage).
TrainConfig read_for_ranks(const TrainOptions& options, const RankLayout& site, bool first_rank);

}  // namespace starling
