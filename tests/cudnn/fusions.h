#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace starling::testing {

/// A fusion that the backend does not use, or not in this form, and how many engines a device has for it.
struct Fusion {
  std::string name;
  int engines = 0;
  bool expected = false;  ///< what docs/cudnn.md says
};
std::vector<Fusion> plan_fusions(std::string_view device_json, DType dtype, bool ampere);

}  // namespace starling::testing
