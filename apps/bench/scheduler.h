#pragma once

#include <cstdint>
#include <string>

#include "comm/scheduler.h"

namespace starling {

/// What the bucket scheduler and the algorithms cost the host: everything that they call does nothing.
struct SchedulerBench {
  std::string model = "resnet50", stem, optimizer = "accum_adamw", topology;
  double bucket_mb = 25.0;
  int ranks = 8;
  std::int64_t image = 224, classes = 1000, steps = 2000;
  bool json = false;
};

/// Prints for gossip and all-reduce the microseconds of host time that BucketScheduler and Algorithm take in a step over the model's
/// buckets (median, and where they go), against the goal, with warm caches and after other memory has been read; and how often they ask the
/// backend and the heap for memory. The backend's operations do nothing, and the transport's exchanges are done at once.
int bench_scheduler(const SchedulerBench& settings);

}  // namespace starling
