#include "apps/training/output/metrics.h"

#include <fmt/format.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

/// Whether to keep a line of an earlier run when resuming. If it has a loss, its step is `last`.
bool keeps(std::string_view line, std::int64_t resume_step, std::int64_t& last) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto step = json.find("step");
  const bool keeps =
      step != json.end() && step->is_number_integer() && step->get<std::int64_t>() <= resume_step;
  if (keeps && json.contains("loss")) last = step->get<std::int64_t>();
  return keeps;
}

constexpr const char* kLines = "/metrics.jsonl";

/// Makes the folder, drops the lines after `resume_step`, and what is not a whole line. Returns the
/// step of the last one with a loss; 0: there is none.
std::int64_t cut_metrics(const std::string& folder, std::int64_t resume_step) {
  make_folders(folder);
  const std::string path = folder + kLines;
  std::int64_t last = 0;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return last;
  std::ifstream in(path, std::ios::binary);
  const std::string before{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in && !in.eof())
    fail(ExitCode::kUsage, "output", "cannot read {}, which the resumed run continues", path);
  std::string after;
  for (std::size_t begin = 0; begin < before.size();) {
    const std::size_t end = before.find('\n', begin);
    if (end == std::string::npos) break;  // torn by a crash
    const auto line = std::string_view(before).substr(begin, end - begin);
    if (resume_step > 0 && keeps(line, resume_step, last)) (after += line) += '\n';
    begin = end + 1;
  }
  if (after != before) write_file_atomically(path, after.data(), after.size());
  return last;
}

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

MetricsWriter::MetricsWriter(const std::string& folder, const OutputSettings& settings,
                             std::int64_t resume_step)
    : last_loss_(cut_metrics(folder, resume_step)), lines_(folder + kLines, false) {
  if (!settings.prometheus.empty()) prometheus_.emplace(settings.prometheus, folder);
  if (settings.tensorboard) events_.emplace(folder, resume_step + 1);
}

void MetricsWriter::write(const MetricsLine& line) {
  // Numbers have as many digits as give them back exactly; NaN and infinity become null.
  nlohmann::ordered_json json{{"step", line.step}, {"epoch", line.epoch}};
  const auto put = [&](const std::string& key, const std::optional<double>& value,
                       const std::string& tag = {}) {
    if (!value) return;
    json[key] = *value;
    if (events_) events_->scalar(tag.empty() ? key : tag, line.step, *value);
  };
  put("loss", line.loss);
  put("lr", line.lr, "learning_rate");
  put("grad_norm", line.grad_norm);
  put("grad_norm_max", line.grad_norm_max);
  put("samples_per_second", line.samples_per_second);
  put("images_per_second", line.samples_per_second);  // as it was called
  put("tokens_per_second", line.tokens_per_second);
  put("model_flop_utilization", line.model_flop_utilization);
  put("step_ms", line.step_ms);
  put("wait_ms", line.wait_ms);
  put("data_wait_ms", line.data_wait_ms);
  if (line.slowest_rank) json["slowest_rank"] = *line.slowest_rank;
  put("slowest_rank_ms", line.slowest_rank_ms);
  put("fastest_rank_ms", line.fastest_rank_ms);
  put("core_wait", line.core_wait);
  if (line.bytes_sent) json["bytes_sent"] = *line.bytes_sent;
  if (!line.rank_wait_ms.empty()) json["rank_wait_ms"] = line.rank_wait_ms;
  if (!line.participants.empty()) json["participants"] = line.participants;
  for (const MetricValue& metric : line.test)
    put("test_" + metric.name, metric.value, "test/" + metric.name);
  if (!line.sample.empty()) json["sample"] = line.sample;
  put("consensus_distance", line.consensus_distance);
  if (!line.bucket_consensus.empty()) json["consensus_distance_per_bucket"] = line.bucket_consensus;
  lines_.append(json.dump() + "\n");
  if (events_) events_->flush();
  if (prometheus_) prometheus_->take(json);
}

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
