#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "apps/reports/chart.h"
#include "apps/reports/page.h"
#include "core/quantity.h"
#include "core/text.h"

namespace starling {
namespace {

/// Characters of a text in UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool right = false) {
  const std::string fill(width > width_of(text) ? width - width_of(text) : 0, ' ');
  return right ? fill + text : text + fill;
}

/// A curve as a row of bars, the highest for the largest of all runs' numbers.
std::string bars(const std::vector<double>& values, std::size_t width, double low, double high) {
  static constexpr std::array<const char*, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t columns = std::min(width, values.size());
  std::string text;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t begin = c * values.size() / columns, end = (c + 1) * values.size() / columns;
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    const double mean = sum / static_cast<double>(end - begin);
    if (!std::isfinite(mean)) {
      text += "×";
      continue;
    }
    const double height = high > low ? 7.0 * (mean - low) / (high - low) : 3.0;
    text += kBars[static_cast<std::size_t>(std::clamp(std::lround(height), 0L, 7L))];
  }
  return text;
}

void add_field(std::string& text, const Runs& runs, const FieldText& of, std::size_t names,
               std::size_t width) {
  const std::string& field = of.field;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const auto& run : runs) {
    for (const double value : run->series(field).value) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!(low <= high)) return;
  const auto number = [&](double value) {
    return of.share ? fmt::format("{:.4g} %", 100.0 * value) : number_text(value);
  };
  text += fmt::format("\n{} ({} to {}{}{})\n", shown(field), number(low), number(high),
                      of.unit.empty() ? "" : " ", of.unit);
  for (const auto& run : runs) {
    const std::vector<double>& values = run->series(field).value;
    if (values.empty()) continue;
    // name, bars, first → last number
    const std::string ends = fmt::format("{} → {}", number(values.front()), number(values.back()));
    text += "  " + padded(shown(run->name, names), names) + "  " +
            padded(bars(values, width, low, high), width) + "  " + ends + "\n";
  }
}

}  // namespace

std::string report_text(const Runs& runs, std::size_t width) {
  std::size_t names = 3;
  for (const auto& run : runs) names = std::max(names, width_of(run->name));
  names = std::min<std::size_t>(names, 20);
  std::string text;
  for (const auto& run : runs) {
    const auto named = [&](const char* path) { return shown(text_at(run->config(), path), 30); };
    const Series& loss = run->series("loss");
    text += fmt::format("{}  {}, step {}, {}, {}, {}", padded(shown(run->name, names), names),
                        run->state(), run->last_step(), counted(run->ranks(), "rank"),
                        named("/sync/algorithm/type"), named("/sync/topology/type"));
    if (!loss.seconds.empty()) text += ", " + quantity(loss.seconds.back(), "s");
    text += "\n";
  }
  const std::size_t taken = names + 28;
  const std::size_t room = std::clamp<std::size_t>(width > taken ? width - taken : 0, 10, 60);
  for (FieldText field : drawn_fields(runs)) {
    if (!field.unit.ends_with("/s")) field.unit.clear();  // it says what the name says
    add_field(text, runs, field, names, room);
  }
  add_field(text, runs, {"wait_ms", "", "ms a step"}, names, room);
  if (runs.size() < 2) return text;
  const std::vector<Difference> all = differences(runs);
  text += all.empty() ? "\nthe configs are the same\n" : "\nwhere the configs differ\n";
  for (const Difference& difference : all) {
    text += "  " + shown(difference.key) + "\n";
    for (std::size_t r = 0; r < runs.size(); ++r)
      text += "    " + padded(shown(runs[r]->name, names), names) + "  " +
              shown(difference.values[r], 60) + "\n";
  }
  return text;
}

}  // namespace starling
