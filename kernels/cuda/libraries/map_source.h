#pragma once

#include <string>

#include "core/operations/map.h"
#include "kernels/cuda/device/map_arguments.h"

namespace starling::cuda {

/// The launch of a Map by a generated kernel, `compiled_map`. Maps with the same key share a
/// kernel: all but sizes, strides, numbers and addresses is part of the source.
struct MapCall {
  std::string key;
  MapArguments arguments{};
  Index pack = 1;     ///< elements that a thread processes
  Index threads = 0;  ///< that process packs or single elements
};
MapCall map_call(const Map& map, const MapLayout& layout);
/// The source for NVRTC.
std::string map_text(const Map& map, const MapLayout& layout, Index pack);

}  // namespace starling::cuda
