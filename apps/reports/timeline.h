#pragma once

#include <string>

#include "apps/reports/run_log.h"

namespace starling {

/// Two steps from the middle of a run's timeline (the file of --trace, where it lies still) as an
/// SVG element: a row for each rank's lanes, spans that nest below each other. Empty where there is
/// no such file; a sentence in HTML where it cannot be read or is larger than 256 MiB.
std::string draw_timeline(const RunLog& run);

}  // namespace starling
