#pragma once

#include "comm/mpi/session.h"

namespace starling::test {
/// The program's MPI.
MpiSession& session();
}  // namespace starling::test
