#pragma once

#include "comm/mpi_session.h"

namespace starling::test {
/// The program's MPI.
MpiSession& session();
}  // namespace starling::test
