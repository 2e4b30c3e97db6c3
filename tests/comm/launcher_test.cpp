#include "comm/mpi/launcher.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace starling::detail {
namespace {

/// What read_launcher() makes of these variables and of no other of a launcher.
Launcher with(const std::map<std::string, std::string>& variables) {
  static const char* const kAll[] = {"OMPI_MCA_ess_base_jobid",
                                     "PMIX_NAMESPACE",
                                     "PMI_JOBID",
                                     "SLURM_STEP_ID",
                                     "SLURM_JOB_ID",
                                     "OMPI_COMM_WORLD_RANK",
                                     "PMIX_RANK",
                                     "PMI_RANK",
                                     "SLURM_PROCID",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "MPI_LOCALNRANKS",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "PMI_SIZE",
                                     "SLURM_STEP_NUM_TASKS",
                                     "WORLD_SIZE",
                                     "RANK",
                                     "MASTER_ADDR",
                                     "STARLING_ALONE"};
  for (const char* name : kAll) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const Launcher launcher = read_launcher();
  for (const char* name : kAll) unsetenv(name);
  return launcher;
}

TEST_CASE("launcher: who was started with others and does not find them") {
  const Launcher srun = with({{"SLURM_JOB_ID", "7"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_PROCID", "1"},
                              {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK(srun.job == "7.0");
  CHECK(srun.rank == 1);
  CHECK_FALSE(srun.joins);
  CHECK(apart(srun, 1));
  CHECK(
      apart_text(srun, "Open MPI v4.1.4").find("2 processes were started (SLURM_STEP_NUM_TASKS)") !=
      std::string::npos);
  CHECK(apart_text(srun, "Open MPI v4.1.4").find("srun --mpi=pmix") != std::string::npos);
  const Launcher pmix =
      with({{"PMIX_NAMESPACE", "n"}, {"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}});
  CHECK(pmix.joins);
  CHECK(pmix.size == 3);
  CHECK(apart(pmix, 1));
  CHECK_FALSE(apart(pmix, 3));
  const Launcher hydra = with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK(apart(hydra, 1));
  CHECK(apart_text(hydra, "Open MPI v4.1.4").find("by Open MPI's mpirun") != std::string::npos);
  const Launcher torchrun = with({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "a"}});
  CHECK_FALSE(torchrun.joins);
  CHECK(apart(torchrun, 1));
  CHECK_FALSE(apart(with({{"WORLD_SIZE", "2"}}), 1));
  const Launcher mpirun = with(
      {{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(apart(mpirun, 1));
  CHECK(mpirun.local_size == 2);
  CHECK(foreign(mpirun, "MPICH 4.0"));
  CHECK_FALSE(foreign(mpirun, "Open MPI v5.0.11"));
  CHECK_FALSE(foreign(hydra, "MPICH 4.0"));
  CHECK(apart_text(mpirun, "MPICH 4.0").find("that library's own mpiexec") != std::string::npos);
}

TEST_CASE("launcher: who is alone rightly") {
  const Launcher none = with({});
  CHECK_FALSE(none.joins);
  CHECK(none.rank == -1);
  CHECK_FALSE(apart(none, 1));
  CHECK_FALSE(apart(with({{"STARLING_ALONE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}), 1));
  // daemons of mpirun
  const Launcher one =
      with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK_FALSE(one.joins);
  CHECK_FALSE(apart(one, 1));
}

}  // namespace
}  // namespace starling::detail
