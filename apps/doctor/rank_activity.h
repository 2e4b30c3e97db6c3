#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/doctor/flight_record.h"

// What each rank was doing when its flight record was written, the input of blame().
namespace starling {

using Ranks = std::vector<int>;

inline bool same_exchange(const FlightPlace& a, const FlightPlace& b) {
  return a.lane == b.lane && a.step == b.step && a.bucket == b.bucket && a.round == b.round;
}

/// Name of an exchange, as errors give it.
std::string exchange_text(const FlightPlace& place);
/// Name of a call that all ranks make together.
std::string call_text(const RecordedEvent& event);

/// What one rank was doing when its record was written.
struct RankActivity {
  /// An unfinished kWait, kReaders or kCall; null: it was not waiting for ranks
  const RecordedEvent* wait = nullptr;
  const RecordedEvent* load = nullptr;  ///< an unfinished wait for the data loader, or null
  const RecordedEvent* last = nullptr;
  const RecordedEvent* aside = nullptr;  ///< an unfinished test or checkpoint
  std::int64_t step = -1;
  bool first_to_give_up = false;
  Ranks timed_out, lost;  ///< ranks that it reported so
  /// Ranks that it has reported as late during the current wait
  Ranks late;
  /// By rank: the last event about the state of that rank's process as the kernel reports it
  std::map<int, const RecordedEvent*> found;
  /// Name of what it waits for.
  std::string wait_text() const;
};

/// Time when a rank gave up on others and ended the job; far in the future if it did not.
std::int64_t gave_up_at(const FlightRecord& record);
/// Evaluates a record. Of events after `end`, only observations count, since a stopped rank that is
/// resumed for termination still records some events.
RankActivity activity_of(const FlightRecord& record, std::int64_t end);

}  // namespace starling
