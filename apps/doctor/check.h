#pragma once

#include <string>

namespace starling {

struct CheckOptions {
  std::string folder = ".";  ///< for the run's output
  bool json = false;
  double timeout = 60.0;  ///< seconds to wait for another rank before that is an error
};
/// Checks this host, or under mpirun all hosts of the job and the network between them; rank 0
/// prints the findings. Takes some seconds. Returns 0, or 2 if a problem was found.
int check(const CheckOptions& options);

}  // namespace starling
