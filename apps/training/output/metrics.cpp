#include "apps/training/output/metrics.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "apps/training/output/event_file.h"
#include "apps/training/output/output_file.h"
#include "apps/training/output/prometheus.h"
#include "core/error.h"
#include "core/safetensors.h"

namespace starling {
namespace {

/// Whether to keep a line of an earlier run when resuming after `resume_step`. If it has a loss,
/// its step is the `last` one.
bool keeps(std::string_view line, std::int64_t resume_step, std::int64_t& last) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto step = json.find("step");
  const bool keeps =
      step != json.end() && step->is_number_integer() && step->get<std::int64_t>() <= resume_step;
  if (keeps && json.contains("loss")) last = step->get<std::int64_t>();
  return keeps;
}

/// Drops the lines after `resume_step`, and what is not a whole line. Returns the step of the last
/// one with a loss; 0: there is none.
std::int64_t cut_metrics(const std::string& path, std::int64_t resume_step) {
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

}  // namespace

struct MetricsWriter::State {
  OutputFile lines;
  std::unique_ptr<EventFile> events;
  std::optional<PrometheusFile> prometheus;
};

MetricsWriter::MetricsWriter(const std::string& folder, const OutputSettings& settings,
                             std::int64_t resume_step) {
  make_folders(folder);
  const std::string path = folder + "/metrics.jsonl";
  last_loss_ = cut_metrics(path, resume_step);
  // NOLINTNEXTLINE(modernize-make-unique): an aggregate
  state_ = std::unique_ptr<State>(new State{{path, false}, nullptr, std::nullopt});
  if (!settings.prometheus.empty()) state_->prometheus.emplace(settings.prometheus, folder);
  if (settings.tensorboard) state_->events = std::make_unique<EventFile>(folder, resume_step + 1);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const MetricsLine& line) {
  // Numbers are written with as many digits as give them back exactly; JSON has no NaN and no
  // infinity, they become null.
  nlohmann::ordered_json json{{"step", line.step}, {"epoch", line.epoch}};
  const auto put = [&](const char* key, const std::optional<double>& value, const char* tag) {
    if (!value) return;
    json[key] = *value;
    if (tag && state_->events) state_->events->scalar(tag, line.step, *value);
  };
  put("loss", line.loss, "loss");
  put("lr", line.lr, "learning_rate");
  put("grad_norm", line.grad_norm, "grad_norm");
  put("grad_norm_max", line.grad_norm_max, "grad_norm_max");
  // the second is what it was called
  for (const char* key : {"samples_per_second", "images_per_second"})
    put(key, line.samples_per_second, key);
  put("tokens_per_second", line.tokens_per_second, "tokens_per_second");
  put("model_flop_utilization", line.model_flop_utilization, "model_flop_utilization");
  put("step_ms", line.step_ms, "step_ms");
  put("wait_ms", line.wait_ms, "wait_ms");
  put("data_wait_ms", line.data_wait_ms, "data_wait_ms");
  if (line.slowest_rank) json["slowest_rank"] = *line.slowest_rank;
  put("slowest_rank_ms", line.slowest_rank_ms, "slowest_rank_ms");
  put("fastest_rank_ms", line.fastest_rank_ms, "fastest_rank_ms");
  put("core_wait", line.core_wait, "core_wait");
  put("bytes_sent", line.bytes_sent, nullptr);
  if (!line.rank_wait_ms.empty()) json["rank_wait_ms"] = line.rank_wait_ms;
  if (!line.participants.empty()) json["participants"] = line.participants;
  for (const MetricValue& metric : line.test)
    put(("test_" + metric.name).c_str(), metric.value, ("test/" + metric.name).c_str());
  if (!line.sample.empty()) json["sample"] = line.sample;
  put("consensus_distance", line.consensus_distance, "consensus_distance");
  if (!line.bucket_consensus.empty()) json["consensus_distance_per_bucket"] = line.bucket_consensus;
  state_->lines.append(json.dump() + "\n");
  if (state_->events) state_->events->flush();
  if (state_->prometheus) state_->prometheus->take(json);
}

}  // namespace starling
