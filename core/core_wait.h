#pragma once

#include <string>
#include <string_view>

namespace starling {

/// How long this process's threads waited for a core, as others had it, since this was made.
class CoreWait {
 public:
  CoreWait();
  /// Of the time in which they ran or wanted to: 0 to 1. 0 where the kernel does not say.
  double share() const;

 private:
  double ran_ = 0.0, waited_ = 0.0;
};
/// From this share on a measurement is told to be disturbed.
constexpr double kBusy = 0.1;
/// "threads waited for a core 43 % of the time (…)", behind `before`; empty below kBusy.
std::string busy_text(std::string_view before, double share);

}  // namespace starling
