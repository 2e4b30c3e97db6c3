// JSON as configs have it: strict, with line and column in errors. What was read is written and
// read again.
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  return fuzz::reads_or_refuses([&] {
    const nlohmann::json value = parse_json(fuzz::text(data, size), "fuzz.json");
    if (parse_json(value.dump(), "again") != value) std::abort();
  });
}
