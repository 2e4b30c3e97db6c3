#pragma once

#include <mpi.h>

#include <string>
#include <vector>

// ULFM, MPI's way to go on after a lost rank, as Open MPI 5 has it: a call that needs the rank
// fails instead of ending the job, and the ranks that are left make a communicator of their own.
// With a library that has none of it these functions do nothing. Callers hold mpi_lock().

namespace starling::detail {

/// Why a lost rank ends the job, as a clause; empty where ULFM is there and switched on. After
/// MPI_Init.
std::string why_no_ulfm();
/// Whether a call failed because a rank is lost, or others have revoked the communicator for that
/// reason.
bool is_rank_failure(int code);
/// A receive from any rank fails once where one of them is lost; after this it goes on with the
/// others.
void acknowledge_failures(MPI_Comm comm);
/// The ranks of `comm` that MPI knows to be lost.
std::vector<int> failed_ranks(MPI_Comm comm);
/// The ranks of `before` that are not in `after`.
std::vector<int> lost_between(MPI_Comm before, MPI_Comm after);
/// All that is under way on `comm` fails, on every rank.
void revoke(MPI_Comm comm);
/// A communicator of the ranks that are left, in the same order. Collective over them.
int shrink(MPI_Comm comm, MPI_Comm* left);
/// Whether `mine` is true on all ranks that are left, and none was lost meanwhile. Collective over
/// them.
bool agree(MPI_Comm comm, bool mine);

}  // namespace starling::detail
