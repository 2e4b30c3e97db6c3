#pragma once

#include <cstdint>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/sampler.h"
#include "comm/world.h"

namespace starling {

/// Computes one number for each training sample, the same on all ranks. Error(kUsage) naming the
/// sample if a number is not finite and >= 0, or ranks disagree. Collective; the data set must be
/// open.
/// kDeclared: Dataset::complexity().
/// kMeasured: milliseconds that Dataset::read() takes. Rank i of n reads samples i, i+n, …, once
/// each, all ranks at the same time as in training. Two measurements differ, so callers that need
/// the same order again must store the result.
std::vector<float> agree_on_complexities(const Dataset& dataset, Sampler::Complexity source,
                                         World& world);

/// Dataset::counted_targets() of each training sample, each computed by one rank. Collective; the
/// data set must be open.
std::vector<std::int32_t> targets_that_count(const Dataset& dataset, World& world);

}  // namespace starling
