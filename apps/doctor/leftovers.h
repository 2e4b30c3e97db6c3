#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// A file or folder of Open MPI 4 or 5 whose job was killed before it removed it.
struct Leftover {
  std::string path;
  std::int64_t bytes = 0;
  std::string kept;  ///< why remove_leftovers() keeps it; empty: it removes it
};

/// Places where Open MPI leaves files and folders.
struct LeftoverPlaces {
  /// Shared-memory segments of the ranks of a host: vader_segment.*, sm_segment.*
  std::string shared_memory = "/dev/shm";
  std::string temporary;  ///< has the launchers' folders, ompi.HOST.USER/pid.N
  std::string processes = "/proc";
  /// The kernel's host name. Files named for others are kept: folders may be shared
  std::string host;
};
/// The places on this host, with $TMPDIR, or /tmp.
LeftoverPlaces leftover_places();

/// Finds what no running process uses, of this user and of others (which is kept): segments that no
/// process has mapped, and folders whose launcher, by its number in any PID namespace visible from
/// here, has ended. They are older than two seconds: a job creates files before it uses them.
std::vector<Leftover> find_leftovers(const LeftoverPlaces& places);

/// Removes them unless `kept` is set; if that fails, sets `kept` to the reason.
void remove_leftovers(std::vector<Leftover>& leftovers);

}  // namespace starling
