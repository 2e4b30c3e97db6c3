#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/inference/table.h"
#include "core/safetensors.h"
#include "core/shape.h"
#include "kernels/math/pixel.h"
#include "layers/layer.h"

namespace starling {

/// What a model file says of itself, so that the file alone is enough to use the model: the
/// metadata starling.config, .classes, .normalize, .columns, .tokenizer, .companions and .input of
/// `model.safetensors`.
struct ModelDescription {
  std::string config;                ///< the resolved config of the run, JSON
  std::vector<std::string> classes;  ///< names by index; empty: not known
  Shape image;                       ///< one input, {H, W, C}; or whatever the model takes
  PixelScale scale;                  ///< how bytes become numbers, per channel
  bool pictures = false;             ///< whether inputs are made of bytes at all
  /// A picture's shorter side becomes so long before its centre is taken; 0: the image's
  std::int64_t resize = 0;
  std::string interpolation = "bilinear";
  std::optional<TableColumns> table = {};  ///< where inputs are rows of a table
  /// Where inputs are tokens of text: Tokenizer::text(); empty: what they mean is not known
  std::string tokenizer = {};
  std::string companions = {};  ///< Companions::text(); empty: none are known
};

/// What an output is called: its class's name; beyond those its number, so that no two are the
/// same.
std::string name_of_output(const std::vector<std::string>& classes, std::size_t output);

/// The first class that has another name in the data, of as many as both know.
std::optional<std::size_t> first_other_class(const std::vector<std::string>& of_model,
                                             const std::vector<std::string>& of_data);

inline constexpr const char* kConfigMetadata = "starling.config";

/// Adds the metadata to a file that is about to be written.
void describe(const ModelDescription& description, SafetensorsFile& file);
/// Reads it. A file of another program, or one whose metadata are damaged, is Error(kUsage) that
/// names the file and the key.
ModelDescription description_of(const SafetensorsFile& file, const std::string& source);

/// The model that a file describes, without memory. `config`: description.config.
std::unique_ptr<Model> described_model(const ModelDescription& description,
                                       const nlohmann::json& config, const std::string& source);

}  // namespace starling
