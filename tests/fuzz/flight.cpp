// The records of two ranks' last events, of which the first is given, and what the doctor makes of
// them.
#include "apps/doctor/flight_record.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  const std::string path = fuzz::file("fuzz.jsonl", fuzz::text(data, size));
  return fuzz::reads_or_refuses([&] {
    FlightRecords records;
    records.by_rank.emplace_back(read_flight_record(path));
    records.by_rank.emplace_back(std::nullopt);
    if (blame(records).empty()) std::abort();
  });
}
