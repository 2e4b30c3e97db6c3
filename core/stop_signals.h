#pragma once

#include <cstdint>

namespace starling {

/// Handles SIGTERM, SIGINT, SIGHUP (unless ignored, as under nohup), SIGUSR1, SIGUSR2 and SIGXCPU,
/// also as process 1 of a container, which otherwise does not receive them. The first one does what
/// at_stop_signal() says; a second one of the first three exits at once with 128 + the signal.
/// SIGQUIT writes the flight record, or ends the process if there is none. Must be called before
/// any thread is started: the signals are blocked in the calling thread and those that it starts.
void install_stop_signals();
/// What the first signal does from now on, also if it has already arrived. kNote (the default):
/// sets stop_requested(). While there is nothing to save: kEnd exits with 128 + the signal;
/// kEndAsStopped, for runs that can be resumed, exits with 75 and prints `word`, if not null, on
/// stdout.
enum class AtStopSignal : std::uint8_t { kNote, kEnd, kEndAsStopped };
void at_stop_signal(AtStopSignal what, const char* word = nullptr);
/// Restores the default action of these signals, to end the process.
void let_signals_end_this_process();
bool stop_requested();
/// 128 + the signal that asked for the stop.
int stop_status();
/// Sets stop_requested(). For tests.
void request_stop(bool stop);

}  // namespace starling
