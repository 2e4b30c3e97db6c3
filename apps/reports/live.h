#pragma once

#include "apps/reports/page.h"

namespace starling {

/// Serves the runs' report on the loopback address until a stop signal comes, and prints where: an
/// address with a token that nobody guesses. Nothing else is served. What the runs' files gain is
/// read when the page asks. `port` 0: any that is free; Error(kUsage) where it is taken.
void serve_report(Runs& runs, int port);

}  // namespace starling
