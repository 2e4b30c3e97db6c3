#pragma once

namespace starling {

/// Whether what this process prints on stdout ends up on a terminal. Under mpirun a rank's stdout is always a pseudo-terminal of
/// mpirun's own, so there mpirun's stdout is asked.
bool stdout_is_terminal();

/// Catches SIGTERM, SIGINT, SIGHUP (unless it is ignored, as under nohup) and SIGUSR1: the first asks for a checkpoint and a clean end
/// (stop_requested() turns true), a second of them but SIGUSR1 ends at once. SIGQUIT has the flight record written. Call it before anything
/// starts a thread: the signals are blocked in the caller and in whatever it starts.
void install_stop_signals();
bool stop_requested();
/// For tests: asks for a stop, or takes the request back.
void request_stop(bool stop);

}  // namespace starling
