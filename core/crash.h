#pragma once

namespace starling {

/// From now on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (std::terminate() too, with its exception's text) leave one line on stderr with
/// rank, step and a stack by function, and the flight record; then the signal ends the process as it would have. The line's functions come
/// from the files' symbols, static functions included. Call it on the main thread, after MPI, which has handlers of its own; in builds
/// with a sanitizer it does nothing, as those tell more.
void install_crash_reports();

}  // namespace starling
