#include "core/core_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <tuple>
#include <utility>

namespace starling {

namespace {

/// Nanoseconds that all threads of this process have run, and waited to be run.
std::pair<double, double> scheduled() {
  double ran = 0.0, waited = 0.0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    std::ifstream numbers(it->path().string() + "/schedstat");
    double run = 0.0, wait = 0.0;
    if (numbers >> run >> wait) {
      ran += run;
      waited += wait;
    }
  }
  return {ran, waited};
}

}  // namespace

CoreWait::CoreWait() { std::tie(ran_, waited_) = scheduled(); }

double CoreWait::share() const {
  const auto [ran, waited] = scheduled();
  const double run = std::max(ran - ran_, 0.0), wait = std::max(waited - waited_, 0.0);
  return run + wait > 0.0 ? wait / (run + wait) : 0.0;
}

std::string busy_text(std::string_view before, double share) {
  if (share < kBusy) return {};
  return fmt::format(
      "{}threads waited for a core {:.0f} % of the time (other programs, or more threads than "
      "cores)",
      before, 100.0 * share);
}

}  // namespace starling
