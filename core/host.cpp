#include "core/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace starling {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

int cores_of_rank(int local_size) {
  const char* policy = std::getenv("OMPI_MCA_hwloc_base_binding_policy");
  const std::string_view name = policy && std::getenv("OMPI_MCA_orte_bound_at_launch") ? policy : "";
  const bool own = name.substr(0, 4) == "core" || name.substr(0, 8) == "hwthread";
  return own ? usable_cores() : usable_cores() / std::max(1, local_size);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace starling
