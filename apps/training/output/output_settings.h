#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// What is told of a run.
struct OutputSettings {
  bool tensorboard = true;
  std::string prometheus;       ///< file of the newest numbers; empty: none
  std::string trace;            ///< file of the timeline; empty: none
  std::string flight_recorder;  ///< on, end or off
  std::int64_t log_every = 10;  ///< steps between lines of metrics.jsonl
};

}  // namespace starling
