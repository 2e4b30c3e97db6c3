#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/flight_recorder.h"

namespace starling {

/// One line of a rank's flight record.
struct RecordedEvent {
  std::int64_t number = 0, us = 0;  ///< us: of the wall clock
  FlightEvent event = FlightEvent::kStep;
  FlightPlace place;
  std::vector<int> ranks;
  std::int64_t rank_count = 0;  ///< more than `ranks` where the recorder had no room for all
  std::string what;
};

/// A rank's file; docs/outputs.md says what it has.
struct FlightRecord {
  int rank = 0, ranks = 1;
  std::string host, reason, text;
  std::int64_t process = 0, us = 0, step = -1;
  std::int64_t start = 0;  ///< when the job began, the same in all its ranks; 0: it does not say
  int exit = 0;
  std::vector<RecordedEvent> events;
};

/// Throws Error(kUsage) with file and line where it is not as it was written.
FlightRecord read_flight_record(const std::string& path);

/// All ranks' records of a run.
struct FlightRecords {
  std::vector<std::optional<FlightRecord>> of;  ///< by rank; empty: there is none, or it is damaged
  std::vector<Error> damaged;
  std::vector<int> broken;           ///< the ranks whose records these are
  std::int64_t start = 0, last = 0;  ///< of the job, and of the last record: microseconds
  std::vector<int> earlier;          ///< ranks whose records are of earlier starts, left out
  bool before = false;               ///< the newest start has left none: these are of one before it
};
/// The records of the newest start that has left any. `run`: the run's folder, or the folder with
/// the records. Error(kUsage) where there is no record at all, or where they are of different runs.
FlightRecords read_flight_records(const std::string& run);

/// When the start that these are of was, and what was left out.
std::string start_text(const FlightRecords& records);
/// Three lines: who waits for whom, what came first, and where ranks issued different things.
std::string blame(const FlightRecords& records);

}  // namespace starling
