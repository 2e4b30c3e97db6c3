#pragma once

#include "plain_run.h"

namespace starling::test {

/// algorithms.md, section 5: choco, low_precision, bytegrad and qadam. False: the run's algorithm
/// is none of them.
bool train_compressed(PlainRun& run);

}  // namespace starling::test
