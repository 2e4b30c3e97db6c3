#include "comm/mpi/ulfm.h"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <numeric>

#include "comm/mpi/session.h"

namespace starling::detail {

std::vector<int> lost_between(MPI_Comm before, MPI_Comm after) {
  MPI_Group had = MPI_GROUP_NULL, has = MPI_GROUP_NULL;
  MPI_Comm_group(before, &had);
  MPI_Comm_group(after, &has);
  int count = 0;
  MPI_Group_size(had, &count);
  std::vector<int> ranks(static_cast<std::size_t>(count)), now(ranks.size()), lost;
  std::iota(ranks.begin(), ranks.end(), 0);
  if (count > 0) MPI_Group_translate_ranks(had, count, ranks.data(), has, now.data());
  for (const int rank : ranks) {
    if (now[static_cast<std::size_t>(rank)] == MPI_UNDEFINED) lost.push_back(rank);
  }
  MPI_Group_free(&had);
  MPI_Group_free(&has);
  return lost;
}

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)

std::string why_no_ulfm() {
  int* on = nullptr;
  int known = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, static_cast<void*>(&on), &known) == MPI_SUCCESS &&
      known && on && *on)
    return {};
  return "ULFM is off in this run; start it with mpirun --with-ft ulfm";
}

bool is_rank_failure(int code) {
  if (code == MPI_SUCCESS) return false;
  int kind = code;
  MPI_Error_class(code, &kind);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING ||
         kind == MPIX_ERR_REVOKED;
}

void acknowledge_failures(MPI_Comm comm) { MPIX_Comm_failure_ack(comm); }

std::vector<int> failed_ranks(MPI_Comm comm) {
  MPI_Group all = MPI_GROUP_NULL, failed = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(comm, &failed) != MPI_SUCCESS) return {};
  MPI_Comm_group(comm, &all);
  int count = 0;
  MPI_Group_size(failed, &count);
  std::vector<int> theirs(static_cast<std::size_t>(count)), ranks(theirs.size());
  std::iota(theirs.begin(), theirs.end(), 0);
  if (count > 0) MPI_Group_translate_ranks(failed, count, theirs.data(), all, ranks.data());
  MPI_Group_free(&failed);
  MPI_Group_free(&all);
  return ranks;
}

void revoke(MPI_Comm comm) { MPIX_Comm_revoke(comm); }

int shrink(MPI_Comm comm, MPI_Comm* left) { return MPIX_Comm_shrink(comm, left); }

bool agree(MPI_Comm comm, bool mine) {
  int flag = mine ? 1 : 0;
  return MPIX_Comm_agree(comm, &flag) == MPI_SUCCESS && flag != 0;
}

#else

std::string why_no_ulfm() {
  return mpi_library_version() +
         " has no ULFM; build with Open MPI 5, and start with mpirun --with-ft ulfm";
}
bool is_rank_failure(int) { return false; }
void acknowledge_failures(MPI_Comm) {}
std::vector<int> failed_ranks(MPI_Comm) { return {}; }
void revoke(MPI_Comm) {}
int shrink(MPI_Comm, MPI_Comm*) { return MPI_ERR_COMM; }
bool agree(MPI_Comm, bool) { return false; }

#endif

}  // namespace starling::detail
