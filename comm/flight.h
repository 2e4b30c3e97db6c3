#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "comm/transport.h"
#include "core/flight_recorder.h"

namespace starling {

inline FlightPlace flight_place(const ExchangeLabel& label) {
  return {label.step, label.bucket, label.round, static_cast<int>(label.lane)};
}
/// Notes an event of an exchange in the process's flight recorder.
inline void note_flight(FlightEvent event, const ExchangeLabel& label,
                        std::span<const int> ranks = {}) {
  FlightRecorder::instance().note(event, flight_place(label), ranks);
}

/// The other ranks of an exchange, ascending; all ranks if it is null.
inline std::vector<int> partners_of(const Exchange* exchange, int ranks_in_all, int rank) {
  std::vector<int> ranks;
  if (!exchange) {
    for (int r = 0; r < ranks_in_all; ++r) ranks.push_back(r);
  } else {
    for (const std::vector<int>* part :
         {&exchange->send_to, &exchange->receive_from, &exchange->group}) {
      ranks.insert(ranks.end(), part->begin(), part->end());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  }
  std::erase(ranks, rank);
  return ranks;
}

}  // namespace starling
