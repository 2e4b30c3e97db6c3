#pragma once

#include <cstdint>

namespace starling {

/// Catches SIGTERM, SIGINT, SIGHUP (unless it is ignored, as under nohup) and SIGUSR1, also as the
/// first process of a container, whose signals the kernel gives to nobody who does not ask for
/// them: the first does what at_stop_signal() says, a second of them but SIGUSR1 ends at once, with
/// 128 + the signal. SIGQUIT has the flight record written, and ends the process where there is
/// none. Call it before anything starts a thread: the signals are blocked in the caller and in
/// whatever it starts.
void install_stop_signals();
/// What the first signal does from here on. kNote (the default): stop_requested() turns true, for
/// whoever has something to save. Where there is nothing, as long as data are looked through and
/// others are waited for: the process ends at once, with 128 + the signal (kEnd) or, as a run that
/// can be resumed, with 75 and `word`, if not null, on stdout (kEndAsStopped). A signal that has
/// come already counts, too.
enum class AtStopSignal : std::uint8_t { kNote, kEnd, kEndAsStopped };
void at_stop_signal(AtStopSignal what, const char* word = nullptr);
/// Lets these signals end this process at once again, whatever was arranged for them before.
void let_signals_end_this_process();
bool stop_requested();
/// 128 + the signal that asked for the stop.
int stop_status();
/// Asks for a stop, or takes the request back. For tests.
void request_stop(bool stop);

}  // namespace starling
