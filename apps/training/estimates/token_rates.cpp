#include "apps/training/estimates/token_rates.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "apps/training/device/device.h"
#include "apps/training/estimates/floor.h"
#include "core/core_wait.h"
#include "core/text.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// As measured before, of a device that has ceilings; otherwise measured now, in some hundredths of
/// a second: the fastest of a few products of square matrices, so large that one takes a while.
ProductPeak product_peak(Backend& backend, DType compute, bool tf32) {
  const bool with_tf32 = compute == DType::kFloat32 && tf32;
  const std::string in = with_tf32 ? "tf32" : std::string(name_of(compute));
  if (const auto known = known_ceilings(backend.description()))
    return {known->flops(compute, tf32), fmt::format("{}, products in {}", known->device, in)};
  constexpr std::int64_t kMostSide = 8192;
  constexpr double kLongEnough = 2e-3;  // seconds
  const CoreWait core_wait;
  for (std::int64_t side = 512;; side *= 2) {
    const double flops = 2.0 * static_cast<double>(side) * static_cast<double>(side * side),
                 seconds = product_seconds(backend, compute, side, 1);
    if (seconds >= kLongEnough || side == kMostSide)
      return {flops / seconds,
              fmt::format("products of {0}×{0} matrices in {1}, measured here{2}", side, in,
                          busy_text(" while ", core_wait.share())),
              core_wait.share()};
  }
}

}  // namespace

TokenRates::TokenRates(const TrainConfig& config, double target_flops, Backend& backend, int ranks)
    : tokens_(static_cast<double>(config.task->targets_of_sample())),
      flops_(target_flops),
      ranks_(ranks) {
  if (tokens_ == 0.0 || flops_ == 0.0) return;
  peak_ = product_peak(backend, config.pass_shape().activations(), config.device.tf32);
}

std::optional<double> TokenRates::utilization(double tokens_per_second) const {
  if (flops_ == 0.0) return std::nullopt;
  const double share = tokens_per_second * flops_ / (peak_.flops_per_second * ranks_);
  // More than all is none: the peak was measured while others had the cores.
  return share <= 1.0 ? std::optional(share) : std::nullopt;
}

std::string TokenRates::disturbance() const {
  return busy_text("MFU may come out too high, as its peak was measured while ", peak_.core_wait);
}

void TokenRates::add_to(MetricsLine& line) const {
  if (tokens_ == 0.0 || !line.samples_per_second) return;
  line.tokens_per_second = *line.samples_per_second * tokens_;
  line.model_flop_utilization = utilization(*line.tokens_per_second);
}

void TokenRates::add_to(nlohmann::json& summary) const {
  if (tokens_ == 0.0) return;
  const double rate = summary["samples_per_second"].get<double>() * tokens_;
  summary["tokens_per_second"] = rate;
  if (flops_ == 0.0) return;
  const std::optional<double> share = utilization(rate);
  summary["model_flop_utilization"] = share ? nlohmann::json(*share) : nlohmann::json();
  summary["flop_per_token"] = flops_;
  summary["peak"] = {{"flops_per_second", peak_.flops_per_second}, {"of", peak_.of}};
}

std::string token_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace,
                       double parameters, double& step_seconds) {
  const auto tokens = static_cast<double>(config.task->targets_of_sample());
  if (tokens == 0.0) return {};
  const double of_step =
      tokens * static_cast<double>(config.length.batch_size * config.length.accumulate);
  const std::string arithmetic =
      fmt::format("FLOP a token: {:.4g}, of products forward and backward\n", trace.target_flops);
  if (config.device.type == "cuda") return arithmetic;
  constexpr std::int64_t kCopy = std::int64_t{1} << 27, kSide = 512;
  const int threads = compute_threads(config.device, site.ranks_per_node);
  const auto backend = open_backend(DeviceType::kCpu, threads);
  const DType compute = config.pass_shape().activations();
  const CoreWait core_wait;
  const Ceilings here = measured_ceilings(*backend, compute, kCopy, kSide);
  const double peak = here.flops(compute, false);
  const std::vector<OperationWork> work = count_step(config, trace.work, parameters, 0.0, here);
  step_seconds = floor_of(work, peak, here.bytes_per_second).seconds;
  return arithmetic +
         fmt::format(
             "tokens a second expected, a rank with {}: about {:.0f}, at most {:.0f} by arithmetic "
             "alone; measured here: products of {}×{} in {} at {:.1f} GFLOP/s, copies at {:.1f} "
             "GB/s{}\n",
             counted(threads, "thread"), of_step / step_seconds, peak / trace.target_flops, kSide,
             kSide, name_of(compute), 1e-9 * peak, 1e-9 * here.bytes_per_second,
             busy_text(", while ", core_wait.share()));
}

}  // namespace starling
