#pragma once

#include <string>

namespace starling::detail {

/// What the launcher (Open MPI's mpirun, MPICH's mpiexec, Slurm's srun, …) has put into this
/// process's environment. -1 and "" if unknown.
struct Launcher {
  std::string job;    ///< identifies this start, the same on all ranks
  std::string hosts;  ///< all hosts, in the launcher's notation
  int rank = -1, size = -1, local_size = -1;
  std::string size_variable;  ///< the environment variable that gave `size`
  bool joins = false;         ///< it tells an MPI library how to find other ranks
  bool alone = false;         ///< STARLING_ALONE=1: each process runs as a single rank
};
Launcher read_launcher();

/// Undoes mpirun's default binding to cores. Open MPI 5 does not tell whether it was the default:
/// it is assumed if the process is bound to a single core, unless the user has set Open MPI 4's
/// variable.
void widen_binding();

/// From now on this process, and those that it starts, are alone for whatever asks the environment.
void leave_launcher();

/// Whether more processes were started than the `found` ranks that MPI has connected, so that each
/// would train alone.
bool apart(const Launcher& launcher, int found);
/// Whether MPI_Init would end this process with a message of its own, as MPICH's does under Open
/// MPI's mpirun.
bool foreign(const Launcher& launcher, const std::string& library);
/// The error for apart() or foreign(), with a remedy. `library`: mpi_library_version().
std::string apart_text(const Launcher& launcher, const std::string& library);

}  // namespace starling::detail
