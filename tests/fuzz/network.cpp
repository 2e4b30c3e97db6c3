// What starling-topo measure writes and plan reads.
#include "comm/planner/network_model.h"

#include <string>
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  return fuzz::reads_or_refuses(
      [&] { (void)network_from_json(std::string(fuzz::text(data, size)), "network.json"); });
}
