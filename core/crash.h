#pragma once

namespace starling {

/// Installs crash reports for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (also by
/// std::terminate(), with the exception's text): one line on stderr with rank, step and a stack
/// trace with function names (including static functions), and the flight record. Then the signal's
/// default action follows. To be called on the main thread after MPI_Init, which installs handlers
/// itself. Does nothing in builds with a sanitizer, whose reports are better. A SIGBUS in a mapped
/// file (core/mapped_files.h) is reported as an error of data instead: "[data] FILE: was shortened
/// …", with the exit status of bad input.
void install_crash_reports();

/// For programs that are not ranks: reports only such a SIGBUS, in a line that begins with `name`,
/// which must be a literal.
void install_data_fault_reports(const char* name);

}  // namespace starling
