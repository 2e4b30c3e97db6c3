#include <nlohmann/json.hpp>

#include "apps/trainer/host.h"
#include "apps/trainer/trainer.h"
#include "apps/trainer/version.h"
#include "core/safetensors.h"

namespace starling {

void Trainer::write_summary() {
  const bool cpu = backend_.device() == DeviceType::kCpu;
  double peak = static_cast<double>(cpu ? peak_resident_bytes() : backend_.memory_stats().reserved);
  double seconds = train_seconds_;
  double skipped = scaler_ ? static_cast<double>(step_ + 1 - scaler_->settle().optimizer_step) : 0.0;
  std::vector<std::string> hosts{host_name()};
  if (transport_.size() > 1) {
    transport_.max(&peak, 1);
    transport_.max(&seconds, 1);
    transport_.max(&skipped, 1);
    hosts = transport_.all_gather(host_name());
  }
  together(transport_, [&] {
    if (transport_.rank() != 0) return;
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    const auto images = static_cast<double>(step_ * config_.accumulate * config_.batch_size * transport_.size());
    nlohmann::json summary{
        {"steps", step_},
        {"epochs", epoch()},
        {"train_seconds", seconds},
        {"images_per_second", seconds > 0 ? images / seconds : 0.0},
        {"peak_memory_bytes", static_cast<std::uint64_t>(peak)},
        {"ranks", transport_.size()},
        {"parameters", config_.model->parameter_count()},
        {"version", version_text()},
        {"commit", commit_text()},
        {"hosts", hosts},
        {"device", backend_.description()},
        {"precision", name_of(config_.compute)},
        {"transport", transport_.name()},
        {"algorithm", config_.algorithm},
        {"topology", config_.topology_name},
        {"consensus_distance", result_->consensus_distance},
    };
    if (config_.defer_norms) summary["batch_norms_in_convolutions"] = true;
    if (!config_.auto_figures.is_null()) summary["auto"] = config_.auto_figures;
    if (scaler_) summary["skipped_steps"] = static_cast<std::int64_t>(skipped);
    if (result_->samples > 0) {
      summary["test_accuracy"] = result_->accuracy;
      summary["test_loss"] = result_->loss;
      if (config_.model->output_shape().back() > 10) summary["test_top5"] = result_->top5;
    }
    const std::string text = summary.dump(2) + "\n";
    write_file_atomically(folder_ + "/summary.json", text.data(), text.size());
  });
}

}  // namespace starling
