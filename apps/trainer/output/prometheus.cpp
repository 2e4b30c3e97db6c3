#include "apps/trainer/output/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/safetensors.h"

namespace starling {
namespace {

/// A label's value: Prometheus' text form escapes these three.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return result;
}

std::string number_text(const nlohmann::ordered_json& value, double scale) {
  const double number = value.is_number() ? value.get<double>() * scale : NAN;
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0.0 ? "+Inf" : "-Inf";
  return fmt::format("{}", number);
}

}  // namespace

PrometheusFile::PrometheusFile(std::string path, const std::string& run)
    : path_(std::move(path)), label_("run=\"" + escaped(run) + "\"") {}

void PrometheusFile::take(const nlohmann::ordered_json& line) {
  for (const auto& [field, value] : line.items()) {
    std::string name = "starling_" + field;
    double scale = 1.0;
    if (name.ends_with("_ms")) {
      name.replace(name.size() - 2, 2, "seconds");
      scale = 1e-3;
    }
    std::string lines = fmt::format("# TYPE {} gauge\n", name);
    if (value.is_array()) {
      if (!field.starts_with("rank_")) continue;
      for (std::size_t rank = 0; rank < value.size(); ++rank)
        lines += fmt::format("{}{{{},rank=\"{}\"}} {}\n", name, label_, rank,
                             number_text(value[rank], scale));
    } else {
      lines += fmt::format("{}{{{}}} {}\n", name, label_, number_text(value, scale));
    }
    gauges_[name] = lines;
  }
  std::string text;
  for (const auto& [name, lines] : gauges_) text += lines;
  write_file_atomically(path_, text.data(), text.size());
}

}  // namespace starling
