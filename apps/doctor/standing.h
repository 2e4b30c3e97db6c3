#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/doctor/flight_record.h"

// What a rank was at when its flight record was written, which is what blame() goes by.
namespace starling {

using Ranks = std::vector<int>;

inline bool same_exchange(const FlightPlace& a, const FlightPlace& b) {
  return a.lane == b.lane && a.step == b.step && a.bucket == b.bucket && a.round == b.round;
}

/// Name of an exchange, as errors give it.
std::string exchange_text(const FlightPlace& place);
/// Name of a call that all ranks make together.
std::string call_text(const RecordedEvent& event);

/// What one rank was at when its record was written.
struct Standing {
  /// kWait, kReaders or kCall that did not end; null: it was not waiting for ranks
  const RecordedEvent* wait = nullptr;
  const RecordedEvent* load = nullptr;  ///< the loader's, likewise
  const RecordedEvent* last = nullptr;
  const RecordedEvent* aside = nullptr;  ///< a test or checkpoint under way
  std::int64_t step = -1;
  bool first_to_give_up = false;
  Ranks timed_out, lost;  ///< as it noted them
  /// That it waited long for in the present wait, as it noted while all went on
  Ranks late;
  /// Events by rank: what the kernel said of its process at last
  std::map<int, const RecordedEvent*> found;
  /// Name of what it waits for.
  std::string wait_text() const;
};

/// Time when a rank gave up on others, and with that the job; the far future where this one did
/// not.
std::int64_t gave_up_at(const FlightRecord& record);
/// What a rank was at. Of what happened after `end` only what was noticed counts: a rank that is
/// woken to be ended does a little more.
Standing standing_of(const FlightRecord& record, std::int64_t end);

}  // namespace starling
