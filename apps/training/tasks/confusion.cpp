#include "apps/training/tasks/confusion.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "core/operations/losses.h"
#include "core/operations/pointwise.h"
#include "layers/functions.h"

namespace starling {

Confusions::Confusions(std::span<const double> table) {
  while (classes * (classes + 1) < static_cast<std::int64_t>(table.size())) ++classes;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i), width = classes + 1;
    if (table[i] > 0.0)
      counts[{place / width, place % width}] = static_cast<std::int64_t>(table[i]);
  }
}

std::int64_t Confusions::at(std::int64_t label, std::int64_t predicted) const {
  const auto found = counts.find({label, predicted});
  return found == counts.end() ? 0 : found->second;
}

bool Confusions::lacks_numbers() const {
  return std::any_of(counts.begin(), counts.end(),
                     [&](const auto& entry) { return entry.first.second == classes; });
}

ConfusionCounter::ConfusionCounter(Backend& backend, std::int64_t classes) : backend_(backend) {
  own_.classes = classes;
  if (classes > kMostInTable) return;
  table_ = Tensor(backend, Shape{classes, classes + 1}, DType::kFloat64);
  backend.fill(table_, 0.0);
}

void ConfusionCounter::add(const TaskOutput& output) {
  const Tensor scores = output.outputs.value();
  if (table_) {
    backend_.confusion_counts({.logits = scores, .labels = output.targets, .counts = table_});
    return;
  }
  const Tensor wide = functions::in_format(scores, DType::kFloat64, backend_);
  const auto classes = static_cast<std::size_t>(own_.classes);
  std::vector<double> numbers(static_cast<std::size_t>(wide.elements()));
  std::vector<std::int32_t> labels(numbers.size() / classes);
  backend_.copy_to_host(wide, numbers.data());
  backend_.copy_to_host(output.targets, labels.data());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::span<const double> row(numbers.data() + i * classes, classes);
    const bool number =
        std::none_of(row.begin(), row.end(), [](double x) { return std::isnan(x); });
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    ++own_.counts[{labels[i], number ? best : own_.classes}];
  }
}

Confusions ConfusionCounter::total(World& world) {
  if (table_) {
    std::vector<double> table(static_cast<std::size_t>(table_.elements()));
    backend_.copy_to_host(table_, table.data());
    if (world.size() > 1) world.sum(table.data(), table.size());
    return Confusions(table);
  }
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
