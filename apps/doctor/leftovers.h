#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// A file or folder that Open MPI 4 or 5 made for a job that has ended, and did not take away:
/// where its launcher or its ranks were killed.
struct Leftover {
  std::string path;
  std::int64_t bytes = 0;
  std::string kept;  ///< why remove_leftovers() does not take it away; empty where it does
};

/// Places where Open MPI leaves files and folders.
struct LeftoverPlaces {
  /// Segments between the ranks of a host: vader_segment.*, sm_segment.*
  std::string shared_memory = "/dev/shm";
  std::string temporary;  ///< a launcher's folder, ompi.HOST.USER/pid.N
  std::string processes = "/proc";
  /// Name of the host, as the kernel has it: what is named for another one is left, as folders may
  /// be shared by hosts and containers
  std::string host;
};
/// Places of this host, with $TMPDIR, or /tmp.
LeftoverPlaces leftover_places();

/// Finds what no living process uses, of this user and host, and of others (whose files stay). A
/// segment counts that nobody has mapped, and so does a folder whose launcher has ended. The
/// launcher is known by its number in any PID namespace that is seen from here, such as a
/// container's. Both must be older than two seconds, since a job that starts makes its files before
/// it uses them.
std::vector<Leftover> find_leftovers(const LeftoverPlaces& places);

/// Takes away what may be; notes in `kept` why where that fails.
void remove_leftovers(std::vector<Leftover>& leftovers);

}  // namespace starling
