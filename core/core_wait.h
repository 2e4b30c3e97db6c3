#pragma once

#include <string>
#include <string_view>

namespace starling {

/// How long this process's threads have waited for a core since construction.
class CoreWait {
 public:
  CoreWait();
  /// Waiting time / (running + waiting time); 0 if the kernel does not provide it.
  double share() const;

 private:
  double ran_ = 0.0, waited_ = 0.0;
};
/// Measurements with a larger share are reported as disturbed.
constexpr double kBusy = 0.1;
/// `before` + "threads waited for a core 43 % of the time (…)"; empty below kBusy.
std::string busy_text(std::string_view before, double share);

}  // namespace starling
