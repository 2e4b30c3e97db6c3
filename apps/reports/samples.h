#pragma once

#include <string>

#include "apps/reports/page.h"

namespace starling {

/// What language models of runs that have ended write, a section of the page; empty where there are
/// none. It may take minutes, and tells how far it is.
std::string text_samples(const Runs& runs);

}  // namespace starling
