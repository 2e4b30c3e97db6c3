#include "apps/doctor/rank_activity.h"

#include <fmt/format.h>

namespace starling {

std::string exchange_text(const FlightPlace& place) {
  if (place.step < 0) return fmt::format("the mean of tensor {}", place.bucket);
  if (place.bucket < 0) return fmt::format("the numbers of step {}", place.step);
  return fmt::format("the exchange of step {}, bucket {}", place.step, place.bucket);
}

std::string call_text(const RecordedEvent& event) {
  return fmt::format("{} (call {})", event.what, event.place.round);
}

std::string RankActivity::wait_text() const {
  if (wait->event == FlightEvent::kCall) return call_text(*wait);
  if (wait->event == FlightEvent::kReaders)
    return fmt::format("the readers of step {}, bucket {}", wait->place.step - 1,
                       wait->place.bucket);
  return exchange_text(wait->place);
}

std::int64_t gave_up_at(const FlightRecord& record) {
  for (const RecordedEvent& event : record.events) {
    if (event.event == FlightEvent::kTimeout || event.event == FlightEvent::kLost) return event.us;
  }
  return INT64_MAX;
}

RankActivity activity_of(const FlightRecord& record, std::int64_t end) {
  RankActivity now;
  now.step = record.step;
  for (const RecordedEvent& event : record.events) {
    const bool noticed = event.event == FlightEvent::kTimeout ||
                         event.event == FlightEvent::kLost || event.event == FlightEvent::kFound;
    if (event.us > end && !noticed) continue;
    switch (event.event) {
      case FlightEvent::kStep: now.step = event.place.step; break;
      case FlightEvent::kWait:
      case FlightEvent::kReaders:
      case FlightEvent::kCall:
        now.wait = &event;
        now.late.clear();
        break;
      case FlightEvent::kWaited:
      case FlightEvent::kCalled: now.wait = nullptr; break;
      case FlightEvent::kLoad: now.load = &event; break;
      case FlightEvent::kLoaded: now.load = nullptr; break;
      case FlightEvent::kCheckpoint:
      case FlightEvent::kTest: now.aside = &event; break;
      case FlightEvent::kSaved:
      case FlightEvent::kTested: now.aside = nullptr; break;
      case FlightEvent::kTimeout:
        now.timed_out = event.ranks;
        now.first_to_give_up = event.us <= end;
        continue;
      case FlightEvent::kLost:
        now.lost.insert(now.lost.end(), event.ranks.begin(), event.ranks.end());
        continue;
      case FlightEvent::kFound: now.found[static_cast<int>(event.place.round)] = &event; continue;
      case FlightEvent::kLate:
        now.late.insert(now.late.end(), event.ranks.begin(), event.ranks.end());
        continue;
      default: break;
    }
    now.last = &event;
  }
  return now;
}

}  // namespace starling
