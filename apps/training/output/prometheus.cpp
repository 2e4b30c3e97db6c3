#include "apps/training/output/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

/// A label's value: Prometheus' text form escapes these three.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : is_utf8(text) ? std::string(text) : shown(text, std::string::npos)) {
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
    if (value.is_string() || (value.is_array() && !field.starts_with("rank_"))) continue;
    std::string name = "starling_" + field, labels = label_;
    double scale = 1.0;
    if (name.ends_with("_ms")) {
      name.replace(name.size() - 2, 2, "seconds");
      scale = 1e-3;
    }
    bool odd = false;
    for (char& c : name) {
      const bool known = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == ':';
      odd |= !known;
      if (!known) c = '_';
    }
    if (odd) labels += ",field=\"" + escaped(field) + "\"";
    auto& lines = gauges_[name];
    if (!value.is_array()) lines[labels] = number_text(value, scale);
    for (std::size_t rank = 0; value.is_array() && rank < value.size(); ++rank)
      lines[fmt::format("{},rank=\"{}\"", labels, rank)] = number_text(value[rank], scale);
  }
  std::string text;
  for (const auto& [name, lines] : gauges_) {
    text += fmt::format("# TYPE {} gauge\n", name);
    for (const auto& [labels, number] : lines)
      text += fmt::format("{}{{{}}} {}\n", name, labels, number);
  }
  try {
    write_file_atomically(path_, text.data(), text.size());
    failed_ = false;
  } catch (const Error& error) {
    if (!std::exchange(failed_, true))
      log::warning("{}; training goes on without the file of prometheus", error.message());
  }
}

}  // namespace starling
