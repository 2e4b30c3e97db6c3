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
/// The confusion counts as CSV: rows are true classes, columns predicted ones. With more than
/// Confusions::kMostInTable: a line "true class,predicted class,samples" for each pair.
std::string confusion_csv(const EvaluationResult& result, const std::vector<std::string>& names);

/// --evaluate: tests the file's model on the config's data. Rank 0 prints the result, JSON last.
ExitCode evaluate_model(const TrainOptions& options, TrainConfig& config, Backend& backend,
                        Transport& transport);

}  // namespace starling
