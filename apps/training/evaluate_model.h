#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "apps/training/evaluation.h"
#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// A line for each class: name, number of test samples, and how many were classified correctly.
std::string class_table(const EvaluationResult& result, const std::vector<std::string>& names);
/// The confusion counts as comma-separated values: rows are the true classes, columns the predicted
/// ones, both with their names. With more than Confusions::kMostInTable classes: a line for each
/// pair that occurred, "true class,predicted class,samples".
std::string confusion_csv(const EvaluationResult& result, const std::vector<std::string>& names);

/// --evaluate: tests the file's model on the config's data, on all ranks. Rank 0 prints the result;
/// the last line is JSON.
ExitCode evaluate_model(const TrainOptions& options, TrainConfig& config, Backend& backend,
                        Transport& transport);

}  // namespace starling
