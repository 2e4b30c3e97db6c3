#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// Cores that this process may use: those that it may run on, and no more than its CPU quota has
/// whole ones (at least 1).
int usable_cores();
/// The CPU quota of a container or batch system, in cores: the least of this process's control
/// groups (version 1 or 2) and those above them; infinity where there is none. `groups` is as
/// /proc/self/cgroup, `root` where the groups are mounted.
double cpu_quota(const std::string& groups, const std::string& root);
double cpu_quota();

/// Error(kMemory) where the limit of stacks (ulimit -s), which is that of every thread's too, is
/// smaller than kernels and libraries take: they would die in their midst without a word.
void check_stack_limit();
/// Cores of a rank: the share of one of `local_size` ranks on this host: all of them where mpirun
/// bound each rank to cores of its own.
int cores_of_rank(int local_size);
std::string host_name();
/// What processes have in common that see each other's: the kernel since its start, and its
/// namespace of a kind ("pid", "net"). Empty where the kernel does not say.
std::string boot_id();
std::string namespace_id(const char* kind);
/// What the kernel says of a process of this host.
struct ProcessState {
  /// State as in /proc: R runs, S sleeps, D waits for a disk, T is stopped, Z has ended; '\0': not
  /// known
  char letter = '\0';
  int on_disk = 0;  ///< threads in state D
};
ProcessState process_state(int process);
/// Largest resident set of this process so far, in bytes.
std::uint64_t peak_resident_bytes();

}  // namespace starling
