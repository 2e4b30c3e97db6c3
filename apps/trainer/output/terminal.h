#pragma once

#include <cstddef>

namespace starling {

/// Whether what this process prints on stdout ends up on a terminal. Under mpirun a rank's stdout
/// is always a pseudo-terminal of mpirun's own, so there mpirun's stdout is asked.
bool stdout_is_terminal();
/// Columns of the terminal on stdout; 80 where there is none.
std::size_t terminal_width();

}  // namespace starling
