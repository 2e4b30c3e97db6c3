#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "apps/training/evaluation.h"
#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// A class's name and number of test samples, and how many of them were recognised, a line each.
std::string class_table(const EvaluationResult& result, const std::vector<std::string>& names);
/// The confusion counts as comma-separated values: rows are the true classes, columns the predicted
/// ones, both with their names. Of more than Confusions::kMostInTable classes a line for each
/// pair that was seen: "true class,predicted class,samples".
std::string confusion_csv(const EvaluationResult& result, const std::vector<std::string>& names);

/// --evaluate: tests the file's model on the config's data, all ranks together. Rank 0 prints what
/// came out; the last line is JSON.
ExitCode evaluate_model(const TrainOptions& options, TrainConfig& config, Backend& backend,
                        Transport& transport);

}  // namespace starling
