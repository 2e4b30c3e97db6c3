// A trainer's whole config, with model, optimizer, topology, algorithm and data set, up to the step
// before memory is taken.
#include <nlohmann/json.hpp>

#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "core/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  static const bool once = (register_builtins(), true);
  (void)once;
  return fuzz::reads_or_refuses([&] {
    nlohmann::json config = parse_json(fuzz::text(data, size), "fuzz.json");
    if (config.is_object()) config.erase("plugins");  // any library of this machine is no input
    const TrainConfig read = read_train_config(config, "fuzz.json", {4, 4});
    if (read_train_config(read.resolved, "resolved.json", {4, 4}).resolved != read.resolved)
      std::abort();
  });
}
