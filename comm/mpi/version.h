#pragma once

#include <string>

namespace starling {

/// "Open MPI v4.1.4"; may be asked before MPI is initialised.
std::string mpi_library_version();

}  // namespace starling
