#include "core/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

namespace {

/// The state in a "stat" file of /proc, which follows the program's name in brackets.
char state_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");
  return end == std::string::npos || end + 2 >= text.size() ? '\0' : text[end + 2];
}

}  // namespace

ProcessState process_state(int process) {
  const std::string folder = "/proc/" + std::to_string(process);
  ProcessState state{state_in(folder + "/stat"), 0};
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder + "/task", error), end; !error && it != end; it.increment(error)) {
    if (state_in(it->path().string() + "/stat") == 'D') ++state.on_disk;
  }
  return state;
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace starling
