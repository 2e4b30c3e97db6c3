#include "comm/rank_processes.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "core/flight_recorder.h"
#include "core/host.h"

namespace starling {
namespace {

std::mutex processes_mutex;
std::map<int, int>& rank_processes() {
  static std::map<int, int> processes;
  return processes;
}

}  // namespace

void set_rank_processes(std::map<int, int> processes) {
  const std::scoped_lock lock(processes_mutex);
  rank_processes() = std::move(processes);
}

std::string state_of_rank(int rank) {
  int process = 0;
  {
    const std::scoped_lock lock(processes_mutex);
    const auto it = rank_processes().find(rank);
    if (it == rank_processes().end()) return {};
    process = it->second;
  }
  const ProcessState state = process_state(process);
  const auto found = [&](const char* word) {
    FlightRecorder::instance().note(FlightEvent::kFound, {.round = rank}, word);
  };
  switch (state.letter) {
    case '\0': return {};
    case 'T':
    case 't':
      found("stopped");
      return fmt::format("its process {} is stopped, by SIGSTOP or a debugger", process);
    case 'Z':
    case 'X': found("ended"); return fmt::format("its process {} has ended", process);
    default: break;
  }
  if (state.on_disk > 0) {
    found("waits for a disk");
    return fmt::format("{} of its process {}'s threads wait for a disk", state.on_disk, process);
  }
  return fmt::format("its process {} {}", process, state.letter == 'R' ? "computes" : "sleeps");
}

}  // namespace starling
