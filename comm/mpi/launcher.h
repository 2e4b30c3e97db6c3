#pragma once

#include <string>

namespace starling::detail {

/// What the launcher says of this process in its environment: Open MPI's mpirun, MPICH's mpiexec,
/// Slurm's srun and their relatives. -1 and "" stand for what it does not say.
struct Launcher {
  std::string job;    ///< a name that all ranks of this start share
  std::string hosts;  ///< all that were named to it, as it writes them
  int rank = -1, size = -1, local_size = -1;
  std::string size_variable;  ///< where `size` stands
  bool joins = false;         ///< it tells an MPI library how to find other ranks
  bool alone = false;         ///< STARLING_ALONE=1: each process is to be by itself
};
Launcher read_launcher();

/// Whether several processes were started that MPI, which found so many ranks, has not brought
/// together: each would train by itself.
bool apart(const Launcher& launcher, int found);
/// Whether MPI_Init would end this process in words of its own: MPICH's does where Open MPI's
/// mpirun started it.
bool foreign(const Launcher& launcher, const std::string& library);
/// Text of an error where apart() or foreign(), with what to do. `library`: as of
/// mpi_library_version().
std::string apart_text(const Launcher& launcher, const std::string& library);

}  // namespace starling::detail
