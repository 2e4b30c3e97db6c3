#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// Rates of a learning-rate range test, the first and the last, and how many.
struct LrRange {
  double from = 1e-7, to = 10.0;
  std::int64_t steps = 100;
};

/// The command line of starling-train.
struct TrainOptions {
  std::string config, output, resume, device, trace, list, evaluate, test, confusion, samples,
      lr_find, join, secret, network;
  LrRange lr_range;  ///< of --lr-find
  std::vector<std::string> settings;
  bool of_training = false;  ///< --samples has the training set's
  bool list_long = false;    ///< --list says a line on each
  bool elastic = false;      ///< --resume may continue with another number of ranks
  bool dry_run = false, json = false, check_gradients = false, version = false, help = false,
       describe_config = false;
  std::string help_text;
};

/// Parses it; a mistake is Error(kUsage) in one line.
TrainOptions parse_train_options(int argc, char** argv);

}  // namespace starling
