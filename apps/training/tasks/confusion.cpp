#include "apps/training/tasks/confusion.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/operations/along.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"

namespace starling {

std::int64_t Confusions::at(std::int64_t label, std::int64_t predicted) const {
  const auto found = counts.find({label, predicted});
  return found == counts.end() ? 0 : found->second;
}

bool Confusions::lacks_numbers() const {
  return std::ranges::any_of(counts,
                             [&](const auto& entry) { return entry.first.second == classes; });
}

void ConfusionCounter::add(const TaskOutput& output) {
  const Tensor& scores = output.outputs.value();
  const std::int64_t rows = output.targets.elements();
  const Tensor labels(backend_, Shape{rows}, DType::kInt32),
      places(backend_, Shape{rows}, DType::kInt32), largest(backend_, {rows, 1, 1}, scores.dtype());
  backend_.copy(output.targets.reshaped({rows}), labels);
  backend_.topk({.x = scores.reshaped({rows, own_.classes, 1}),
                 .values = largest,
                 .index = places.reshaped({rows, 1, 1})});
  batches_.push_back({labels, places, functions::in_format(largest, DType::kFloat64, backend_)});
}

Confusions ConfusionCounter::total(World& world) {
  for (const Predictions& batch : batches_) {
    const auto rows = static_cast<std::size_t>(batch.labels.elements());
    std::vector<std::int32_t> labels(rows), places(rows);
    std::vector<double> scores(rows);
    backend_.copy_to_host(batch.labels, labels.data());
    backend_.copy_to_host(batch.places, places.data());
    backend_.copy_to_host(batch.scores, scores.data());
    for (std::size_t i = 0; i < rows; ++i) {
      // NaN is the largest of a row that has one.
      if (labels[i] >= 0 && labels[i] < own_.classes)
        ++own_.counts[{labels[i], std::isnan(scores[i]) ? own_.classes : places[i]}];
    }
  }
  batches_.clear();
  if (world.size() == 1) return own_;
  std::vector<std::int64_t> mine;
  for (const auto& [pair, count] : own_.counts)
    mine.insert(mine.end(), {pair.first, pair.second, count});
  Confusions all;
  all.classes = own_.classes;
  const std::string text(reinterpret_cast<const char*>(mine.data()),
                         mine.size() * sizeof(std::int64_t));
  for (const std::string& part : world.all_gather(text)) {
    std::vector<std::int64_t> triples(part.size() / sizeof(std::int64_t));
    std::memcpy(triples.data(), part.data(), part.size());
    for (std::size_t i = 0; i + 2 < triples.size(); i += 3)
      all.counts[{triples[i], triples[i + 1]}] += triples[i + 2];
  }
  return all;
}

}  // namespace starling
