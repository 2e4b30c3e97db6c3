#pragma once

namespace starling {

/// Catches SIGTERM, SIGINT and SIGUSR1: the first asks for a checkpoint and a clean end (stop_requested() turns true), a second of SIGTERM
/// or SIGINT ends at once. Call it before anything starts a thread: the signals are blocked in the caller and in whatever it starts.
void install_stop_signals();
bool stop_requested();
/// For tests: asks for a stop, or takes the request back.
void request_stop(bool stop);

}  // namespace starling
