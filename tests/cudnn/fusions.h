#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace starling::testing {

/// A fusion, whether the backend uses it or not, and how many engines a device has for it.
struct Fusion {
  std::string name;
  int engines = 0;
  bool expected = false;  ///< what docs/cudnn.md says
};
std::vector<Fusion> plan_fusions(std::string_view device_json, DType dtype, bool ampere);

}  // namespace starling::testing
