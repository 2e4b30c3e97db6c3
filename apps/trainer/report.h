#pragma once

#include <string>

#include "apps/trainer/shape_trace.h"
#include "apps/trainer/train_config.h"

namespace starling {

/// What --dry-run prints after the resolved config: parameters, buckets, topology, data, length of the run, memory a rank.
std::string dry_run_report(const TrainConfig& config, const RunSite& site, const ShapeTrace& trace);
/// One or two lines for the start of a run: model, buckets, algorithm, topology.
std::string run_headline(const TrainConfig& config, const RunSite& site, const ShapeTrace& trace);
/// "1.5 MiB"
std::string size_text(double bytes);

}  // namespace starling
