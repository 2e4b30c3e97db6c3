#include "core/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/error.h"

namespace starling {

namespace {

std::string text_in(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Quota that one group's files say. Version 2: "max 100000" or "150000 100000" in one file,
/// version 1: -1 or a number in one, and the period in another.
double quota_of_group(const std::string& folder, bool second) {
  std::istringstream numbers(second ? text_in(folder + "/cpu.max")
                                    : text_in(folder + "/cpu.cfs_quota_us") + " " +
                                          text_in(folder + "/cpu.cfs_period_us"));
  double quota = -1.0, period = 0.0;
  const bool both = static_cast<bool>(numbers >> quota >> period);
  return both && quota > 0.0 && period > 0.0 ? quota / period
                                             : std::numeric_limits<double>::infinity();
}

/// The number in a file; infinity if it begins with none, as "max" does.
double number_in(const std::string& path) {
  double number = 0.0;
  return std::istringstream(text_in(path)) >> number ? number
                                                     : std::numeric_limits<double>::infinity();
}

double available_in_group(const std::string& folder, bool second) {
  const double most = number_in(folder + (second ? "/memory.max" : "/memory.limit_in_bytes")),
               used = number_in(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!std::isfinite(most) || !std::isfinite(used)) return std::numeric_limits<double>::infinity();
  double pages = 0.0;  // of files
  std::istringstream lines(text_in(folder + "/memory.stat"));
  std::string key;
  for (double number = 0.0; lines >> key >> number;) {
    if (key == (second ? "inactive_file" : "total_inactive_file")) pages = number;
  }
  return std::max(0.0, most - std::max(0.0, used - pages));
}

/// The least of what of(folder, second version) says of this process's groups of a controller and
/// their ancestors.
double least_of_groups(const std::string& groups, const std::string& root,
                       const std::string& controller, double (*of)(const std::string&, bool)) {
  double least = std::numeric_limits<double>::infinity();
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const std::size_t first = line.find(':'), last = line.find(':', first + 1);
    if (last == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, last - first - 1);
    const bool second = controllers.empty();
    if (!second && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    // Within a container the path may be as the host sees it, and only the container's own group is
    // mounted, as the root.
    for (std::string path = line.substr(last + 1);; path.resize(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      for (const std::string& mount :
           second ? std::vector{root, root + "/unified"}
                  : std::vector{root + "/" + controller, root + "/" + controllers})
        least = std::min(least, of(mount + path, second));
      if (path.empty()) break;
    }
  }
  return least;
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

/// Cores that are within the quota, which `ranks` share.
int within_quota(int cores, int ranks) {
  static const double quota = cpu_quota();
  return std::max(1, static_cast<int>(std::min<double>(cores, quota / ranks)));
}

}  // namespace

double cpu_quota(const std::string& groups, const std::string& root) {
  return least_of_groups(groups, root, "cpu", quota_of_group);
}

double available_in_groups(const std::string& groups, const std::string& root) {
  return least_of_groups(groups, root, "memory", available_in_group);
}

double cpu_quota() { return cpu_quota(text_in("/proc/self/cgroup"), "/sys/fs/cgroup"); }

int usable_cores() { return within_quota(allowed_cores(), 1); }

int cores_of_rank(int local_size) {
  const char* policy = std::getenv("OMPI_MCA_hwloc_base_binding_policy");
  const std::string_view name =
      policy && std::getenv("OMPI_MCA_orte_bound_at_launch") ? policy : "";
  const bool own = name.substr(0, 4) == "core" || name.substr(0, 8) == "hwthread";
  const int ranks = std::max(1, local_size);
  return own ? within_quota(allowed_cores(), ranks) : usable_cores() / ranks;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

double tcp_bytes_under_way() {
  const auto largest = [](const char* file) {
    double least = 0.0, first = 0.0, most = 0.0;
    std::ifstream(file) >> least >> first >> most;
    return most;
  };
  // Half of a receiver's memory is for what describes packets.
  return std::min(largest("/proc/sys/net/ipv4/tcp_wmem"),
                  largest("/proc/sys/net/ipv4/tcp_rmem") / 2.0);
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string namespace_id(const char* kind) {
  char text[64] = {};
  const std::string link = std::string("/proc/self/ns/") + kind;
  return readlink(link.c_str(), text, sizeof text - 1) > 0 ? text : "";
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
  for (std::filesystem::directory_iterator it(folder + "/task", error), end; !error && it != end;
       it.increment(error)) {
    if (state_in(it->path().string() + "/stat") == 'D') ++state.on_disk;
  }
  return state;
}

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

void check_stack_limit() {
  constexpr rlim_t kLeast = 256 << 10;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeast) return;
  fail(ExitCode::kMemory, "memory",
       "the limit of stacks is {} KiB (ulimit -s), too few for threads that compute; allow {} or "
       "more, as by ulimit -s 8192",
       limit.rlim_cur >> 10, kLeast >> 10);
}

std::uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::uint64_t value = 0, available = 0;
  while (available == 0 && file >> key >> value) {
    std::getline(file, unit);
    if (key == "MemAvailable:") available = value << 10;
  }
  const double least = available_in_groups(text_in("/proc/self/cgroup"), "/sys/fs/cgroup");
  return least < static_cast<double>(available) ? static_cast<std::uint64_t>(std::max(1.0, least))
                                                : available;
}

}  // namespace starling
