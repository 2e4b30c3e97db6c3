#pragma once

#include <functional>
#include <memory>

#include "comm/algorithm.h"

namespace starling {

/// Runs an algorithm between replicas (comm/replica.h): what `make` makes gets this rank's part of
/// each bucket for a bucket, and the mean over its replica for gradients. `site`: its buckets are
/// whole, its transport is Replica::between().
std::unique_ptr<Algorithm> make_in_replica(
    const AlgorithmSite& site,
    const std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)>& make);

}  // namespace starling
