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
  std::int64_t number = 0, us = 0;  ///< us: wall-clock time
  FlightEvent event = FlightEvent::kStep;
  FlightPlace place;
  std::vector<int> ranks;
  std::int64_t rank_count = 0;  ///< larger than ranks.size() if the recorder had no room for all
  std::string what;
};

/// A rank's file; docs/outputs.md documents the format.
struct FlightRecord {
  int rank = 0, ranks = 1;
  std::string host, reason, text;
  std::int64_t process = 0, us = 0, step = -1;
  std::int64_t start = 0;  ///< when the job began, equal on all its ranks; 0: unknown
  int exit = 0;
  std::vector<RecordedEvent> events;
};

/// Error(kUsage) with file and line if the format is wrong.
FlightRecord read_flight_record(const std::string& path);

/// All ranks' records of a run.
struct FlightRecords {
  std::vector<std::optional<FlightRecord>> by_rank;  ///< empty: missing or damaged
  std::vector<Error> damaged;
  std::vector<int> broken;           ///< ranks with a damaged record
  std::int64_t start = 0, last = 0;  ///< of the job; of the last record; in microseconds
  std::vector<int> earlier;          ///< ranks with records of earlier starts, which are ignored
  bool not_newest = false;  ///< the newest start has left no records; these are of an earlier one
};
/// Reads the records of the newest start that has any. `run`: the run's folder, or the folder of
/// the records. Error(kUsage) if there are no records, or they are of different runs.
FlightRecords read_flight_records(const std::string& run);

/// A line on when this start was, and on records that were ignored.
std::string start_text(const FlightRecords& records);
/// Three lines: who waits for whom, the cause, and where ranks issued different operations.
std::string blame(const FlightRecords& records);

}  // namespace starling
