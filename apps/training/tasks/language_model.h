#pragma once

#include "apps/training/tasks/metric.h"
#include "apps/training/tasks/task.h"

namespace starling {

/// The task "language_model": for tokens {T} the model outputs, at each position, scores of the
/// vocabulary for the next token, compared with targets {T}. functions::kIgnoreIndex is ignored.
void add_language_model_task(TaskRegistry& registry);
/// Its metrics: loss over all test targets, perplexity, bits_per_byte, token_accuracy.
void add_language_model_metrics(MetricRegistry& registry);

}  // namespace starling
