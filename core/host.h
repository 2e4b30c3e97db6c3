#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// Cores that this process may use: limited by its affinity and, rounded down, its CPU quota; at
/// least 1.
int usable_cores();
/// The CPU quota of a container or batch system, in cores: the minimum over this process's control
/// groups (version 1 or 2) and their ancestors; infinity without a quota. `groups`: path of
/// /proc/self/cgroup; `root`: mount point of the groups.
double cpu_quota(const std::string& groups, const std::string& root);
double cpu_quota();

/// Error(kMemory) if the stack limit (ulimit -s), which also applies to threads, is smaller than
/// kernels and libraries need: they would crash without a message.
void check_stack_limit();
/// Cores per rank with `local_size` ranks on this host; all usable ones if mpirun has bound ranks
/// to separate cores.
int cores_of_rank(int local_size);
std::string host_name();
/// Bytes that TCP holds of one connection on their way, as this kernel's limits have it; 0:
/// unknown.
double tcp_bytes_under_way();
/// Identify a boot of the kernel, and a namespace of a kind ("pid", "net"): equal for processes
/// that can see each other. Empty if unknown.
std::string boot_id();
std::string namespace_id(const char* kind);
/// The state of a process of this host.
struct ProcessState {
  /// From /proc: R running, S sleeping, D waiting for a disk, T stopped, Z ended; '\0': unknown
  char letter = '\0';
  int on_disk = 0;  ///< threads in state D
};
ProcessState process_state(int process);
/// Memory that processes of this host, or of a container or batch system that limits it, can still
/// take, in bytes; 0: unknown.
std::uint64_t available_bytes();
/// The same by this process's control groups alone, with arguments as cpu_quota()'s; infinity
/// without a limit. What a file's pages take counts as free where it has not been used lately.
double available_in_groups(const std::string& groups, const std::string& root);
/// Largest resident set of this process so far, in bytes.
std::uint64_t peak_resident_bytes();

}  // namespace starling
