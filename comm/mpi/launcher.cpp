#include "comm/mpi/launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace starling::detail {
namespace {

/// The first of these variables that is set; "" where none is.
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value && *value) return value;
  }
  return {};
}
int number(std::initializer_list<const char*> names) {
  const std::string text = variable(names);
  return text.empty() ? -1 : std::atoi(text.c_str());
}

}  // namespace

Launcher read_launcher() {
  Launcher launcher;
  launcher.job = variable({"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID"});
  if (launcher.job.empty() && std::getenv("SLURM_STEP_ID"))
    launcher.job = variable({"SLURM_JOB_ID"}) + "." + variable({"SLURM_STEP_ID"});
  launcher.hosts = variable({"STARLING_HOSTS", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  launcher.rank = number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"});
  launcher.local_size = number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
  // The nearest launcher counts: the daemons that mpirun starts by srun are tasks, too.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (launcher.size > 0) break;
    launcher.size = number({name});
    launcher.size_variable = name;
  }
  // torchrun and launchers like it set this for any program; a shell may have the name for
  // something else.
  if (launcher.size <= 0 && std::getenv("RANK") && std::getenv("MASTER_ADDR")) {
    launcher.rank = number({"RANK"});
    launcher.size = number({"WORLD_SIZE"});
    launcher.size_variable = "WORLD_SIZE";
  }
  launcher.joins = launcher.size > 0 && !launcher.size_variable.starts_with("SLURM") &&
                           launcher.size_variable != "WORLD_SIZE"
                       ? launcher.size > 1
                       : !variable({"PMIX_RANK", "PMI_RANK"}).empty();
  launcher.alone = variable({"STARLING_ALONE"}) == "1";
  return launcher;
}

void leave_launcher() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    for (const char* of : {"OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_PROCID", "SLURM_STEP_"}) {
      if (name.starts_with(of)) names.push_back(name);
    }
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

bool apart(const Launcher& launcher, int found) {
  return !launcher.alone && found == 1 && launcher.size > 1;
}

bool foreign(const Launcher& launcher, const std::string& library) {
  return launcher.size_variable == "OMPI_COMM_WORLD_SIZE" && library.starts_with("MPICH");
}

std::string apart_text(const Launcher& launcher, const std::string& library) {
  const bool slurm = launcher.size_variable.starts_with("SLURM"),
             open_mpi = library.starts_with("Open MPI");
  const char* right =
      slurm ? (open_mpi ? "srun --mpi=pmix, or by scripts/launch.sh" : "srun --mpi=pmi2")
            : (open_mpi ? "Open MPI's mpirun, or by scripts/launch.sh"
                        : "that library's own mpiexec");
  return fmt::format(
      "[mpi] {} processes were started ({}), but {}, which this program uses, does not bring them "
      "together, and each would train by itself; start them by {}, or set STARLING_ALONE=1 where "
      "each is to be alone",
      launcher.size, launcher.size_variable, library, right);
}

}  // namespace starling::detail
