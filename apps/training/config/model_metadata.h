#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/inference/description.h"
#include "apps/training/config/train_config.h"
#include "core/safetensors.h"

namespace starling {

/// What a model file says of itself; the data set is open.
ModelDescription description_of(const TrainConfig& config);
/// Adds what a model file says of itself, and after how many steps it is written.
void describe_model(const TrainConfig& config, std::int64_t step, SafetensorsFile& file);

/// The model as its tensors stand now, with that and "format": "pt", which PyTorch's readers want.
void write_model(const TrainConfig& config, std::int64_t step, const std::string& path);

/// The test share of a run that drew one, as its model file keeps it. A file of a run that drew one
/// before files kept it is worth a warning. Error(kUsage) names a damaged entry.
std::optional<TestShare> test_share_of(const SafetensorsFile& file, const std::string& source);

/// The config that a model file was trained by, as far as tests of it need it: without what
/// concerns training alone. Error(kUsage) where the file says none, such as one of another program.
nlohmann::json config_of_model(const SafetensorsFile& file, const std::string& source);

}  // namespace starling
