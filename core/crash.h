#pragma once

namespace starling {

/// Installs crash reports for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (std::terminate() too,
/// with its exception's text). From now on they leave one line on stderr with rank, step and a
/// stack by function, and the flight record. Then the signal ends the process as it would have. The
/// line's functions come from the files' symbols, static functions included. Call it on the main
/// thread, after MPI, which has handlers of its own; in builds with a sanitizer it does nothing, as
/// those tell more. A SIGBUS in a file that was mapped (core/mapped_files.h) is an error of data
/// instead: a line "[data] FILE: was shortened …", and the exit status of bad input.
void install_crash_reports();

/// Reports such a SIGBUS alone, for programs that are no ranks: the line begins with the program's
/// name, which must stay.
void install_data_fault_reports(const char* name);

}  // namespace starling
