#pragma once

#include "plain_run.h"

namespace starling::test {

/// Trains choco, low_precision, bytegrad and qadam (algorithms.md, section 5). False: the run's
/// algorithm is none of them.
bool train_compressed(PlainRun& run);

}  // namespace starling::test
