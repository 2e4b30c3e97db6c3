#pragma once

#include <cstdint>
#include <string>

namespace starling {

/// Cores that this process may run on.
int usable_cores();
/// Of those, the share of one of `local_size` ranks on this host: all of them where mpirun bound each rank to cores of its own.
int cores_of_rank(int local_size);
std::string host_name();
/// What the kernel says of a process of this host.
struct ProcessState {
  char letter = '\0';  ///< as in /proc: R runs, S sleeps, D waits for a disk, T is stopped, Z has ended; '\0': not known
  int on_disk = 0;     ///< threads in state D
};
ProcessState process_state(int process);
/// Largest resident set of this process so far, in bytes.
std::uint64_t peak_resident_bytes();

}  // namespace starling
