#pragma once

#include <nlohmann/json.hpp>

#include "comm/transports/plan.h"
#include "core/config.h"

namespace starling {

/// The plan of a value of `sync.transport`: an object or a type.
inline TransportPlan transport_of(const nlohmann::json& value) {
  const nlohmann::json config{{"sync", {{"transport", value}}}};
  ConfigSection section =
      ConfigSection(config, "config").section("sync", "").section("transport", "", "type");
  return read_transport(section);
}

}  // namespace starling
