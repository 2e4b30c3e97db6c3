#pragma once

#include <cstdint>

#include "layers/layer.h"
#include "layers/window.h"

// Config keys that Transformers have in common.
namespace starling {

/// Standard deviation of the initial values of tables and matrices.
inline constexpr double kTransformerDeviation = 0.02;

inline std::int64_t read_vocab(ConfigSection& section, const ModelOutputs& site,
                               std::int64_t usual) {
  return section.integer("vocab", site.num_classes > 0 ? site.num_classes : usual, kSizeRange,
                         "size of the vocabulary; default: the data's");
}

/// Error(kUsage) unless the number of heads divides the width.
inline void check_heads(const ConfigSection& section, std::int64_t heads, std::int64_t width) {
  if (width % heads != 0) section.error("heads", "{} does not divide the width {}", heads, width);
}

}  // namespace starling
