#pragma once

#include <cstdint>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/sampler.h"
#include "comm/world.h"

namespace starling {

/// One number for each training sample, the same on all ranks; what is not a finite number >= 0,
/// and what ranks disagree in, is an error that names the sample. Collective, with the data set
/// open.
///   kDeclared  Dataset::complexity()
///   kMeasured  milliseconds that Dataset::read() takes. Rank i of n reads samples i, i+n, …, once
///              each, all ranks at the same time as in training; all get all times. Two
///              measurements differ, so whoever wants the same order again keeps them.
std::vector<float> agree_on_complexities(const Dataset& dataset, Sampler::Complexity source,
                                         World& world);

/// Dataset::counted_targets() of each training sample, each asked for by one rank. Collective, with
/// the data set open.
std::vector<std::int32_t> targets_that_count(const Dataset& dataset, World& world);

}  // namespace starling
