#pragma once

#include "apps/training/tasks/metric.h"
#include "apps/training/tasks/task.h"

namespace starling {

/// The task "language_model": tokens {T} in, a score for each token of the vocabulary behind each
/// of them out, against the targets {T}. A target that is functions::kIgnoreIndex counts for
/// nothing.
void add_language_model_task(TaskRegistry& registry);
/// Its metrics: loss over all test targets, perplexity, bits_per_byte, token_accuracy.
void add_language_model_metrics(MetricRegistry& registry);

}  // namespace starling
