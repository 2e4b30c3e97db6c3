#pragma once

#include <string>

namespace starling {

struct CheckOptions {
  std::string folder = ".";  ///< where outputs are to lie
  bool json = false;
  double timeout = 60.0;  ///< seconds after which a wait for another rank is an error
};
/// Looks at this host, and under mpirun at all of the job's hosts and what lies between them; rank
/// 0 prints it. Takes some seconds. Returns 0, or 2 where something must be mended.
int check(const CheckOptions& options);

}  // namespace starling
