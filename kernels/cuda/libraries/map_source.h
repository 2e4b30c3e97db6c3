#pragma once

#include <string>

#include "core/operations/map.h"
#include "kernels/cuda/device/map_arguments.h"

namespace starling::cuda {

/// A launch of a Map that is compiled to a separate kernel, `compiled_map`. Maps with the same key
/// are launches of one kernel: all but sizes, strides, numbers and addresses is in its text.
struct MapCall {
  std::string key;
  MapArguments arguments{};
  Index pack = 1;     ///< numbers that a thread takes
  Index threads = 0;  ///< that take packs or places
};
MapCall map_call(const Map& map, const MapLayout& layout);
/// The text, for NVRTC.
std::string map_text(const Map& map, const MapLayout& layout, Index pack);

}  // namespace starling::cuda
