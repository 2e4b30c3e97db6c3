#pragma once

// For authors of algorithms: `AlgorithmPlan` and its facets, `Algorithm`, the buckets, mixers and
// transports that it works with, the fused update (`Updater`), `Bucketwise`, the order of a step
// that most share, and `algorithms()` to add to.

#include "comm/algorithm.h"
#include "comm/algorithms/bucketwise.h"
#include "comm/algorithms/updater.h"
#include "comm/bucket.h"
#include "comm/mixer.h"
#include "comm/transport.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/all.h"
#include "core/registry.h"
