#pragma once

#include <mpi.h>

#include <string>
#include <vector>

// ULFM (user-level failure mitigation) of Open MPI 5: after the loss of a rank, calls that need it
// fail instead of ending the job, and the remaining ranks can make a new communicator. With other
// MPI libraries these functions do nothing. Used under mpi_lock().

namespace starling::detail {

/// Why ULFM is not available, as a clause; empty if it is. Call after MPI_Init.
std::string why_no_ulfm();
/// Whether a call failed because of a lost rank, or because others have revoked the communicator.
bool is_rank_failure(int code);
/// After a loss a receive from any rank fails until this is called.
void acknowledge_failures(MPI_Comm comm);
/// The ranks of `comm` that MPI knows to be lost.
std::vector<int> failed_ranks(MPI_Comm comm);
/// The ranks of `before` that are not in `after`.
std::vector<int> lost_between(MPI_Comm before, MPI_Comm after);
/// Makes all operations on `comm` fail, on every rank.
void revoke(MPI_Comm comm);
/// A communicator of the remaining ranks, in the same order. Collective over them.
int shrink(MPI_Comm comm, MPI_Comm* left);
/// Whether `mine` is true on all remaining ranks, and none of them was lost during the call.
/// Collective over them.
bool agree(MPI_Comm comm, bool mine);

}  // namespace starling::detail
