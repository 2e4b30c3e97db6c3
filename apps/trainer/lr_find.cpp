#include "apps/trainer/lr_find.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

#include "apps/trainer/auto/auto_plan.h"
#include "apps/trainer/trainer.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/file_io.h"
#include "core/stop_signals.h"

namespace starling {
namespace {

/// Share of the smoothed loss that stays at a step, and how many times the least ends the test: as
/// in fastai.
constexpr double kSmoothing = 0.98, kMostRise = 4.0;

/// Rates that grow from the first to the last by the same factor each.
class GrowingRates final : public Schedule {
 public:
  explicit GrowingRates(const LrRange& range) : range_(range) {}
  double lr(std::int64_t t) const override {
    const auto last = static_cast<double>(range_.steps - 1);
    return range_.from * std::pow(range_.to / range_.from, static_cast<double>(t) / last);
  }

 private:
  LrRange range_;
};

/// A line a stretch of steps: its first rate, the smoothed loss, and a bar as long as that.
std::string chart(const std::vector<RangePoint>& points, double marked) {
  constexpr std::size_t kRows = 20, kWidth = 44;
  const auto by_loss = [](const RangePoint& a, const RangePoint& b) {
    return a.smoothed < b.smoothed;
  };
  const auto [low, high] = std::minmax_element(points.begin(), points.end(), by_loss);
  const double range = high->smoothed - low->smoothed;
  const std::size_t rows = std::min(kRows, points.size());
  std::string text = fmt::format("{:>10}  {:>9}\n", "lr", "loss");
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t begin = row * points.size() / rows, end = (row + 1) * points.size() / rows;
    const RangePoint& point = points[begin];
    const bool here = marked >= point.lr && (end == points.size() || marked < points[end].lr);
    const double share = range > 0.0 ? (point.smoothed - low->smoothed) / range : 0.0;
    text += fmt::format("{:>10.2e}  {:>9.4g}  {}{}\n", point.lr, point.smoothed,
                        std::string(1 + static_cast<std::size_t>(share * (kWidth - 1)), '#'),
                        here ? "  <- suggested" : "");
  }
  return text;
}

}  // namespace

bool add_range_point(std::vector<RangePoint>& points, double lr, double loss) {
  if (!std::isfinite(loss)) return false;
  const double before = points.empty() ? 0.0 : points.back().smoothed;
  const auto count = static_cast<double>(points.size());
  // The mean's numerator is what it is times the weights so far.
  const double weights = 1.0 - std::pow(kSmoothing, count),
               sum = kSmoothing * before * weights + (1.0 - kSmoothing) * loss;
  points.push_back({lr, loss, sum / (1.0 - std::pow(kSmoothing, count + 1.0))});
  double least = points.front().smoothed;
  for (const RangePoint& point : points) least = std::min(least, point.smoothed);
  return points.back().smoothed <= kMostRise * least;
}

std::optional<RangeFindings> findings_of(const std::vector<RangePoint>& points) {
  if (points.size() < 3) return std::nullopt;
  const auto least = std::min_element(
      points.begin(), points.end(),
      [](const RangePoint& a, const RangePoint& b) { return a.smoothed < b.smoothed; });
  RangeFindings found{.least = least->lr, .still_falling = least + 1 == points.end()};
  double steepest = 0.0;
  // The first losses are a mean of few, whose noise may fall faster than anything is learnt.
  for (auto point = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 10); point < least;
       ++point) {
    const auto next = point + 1;
    const double slope = (next->smoothed - point->smoothed) / std::log(next->lr / point->lr);
    if (slope >= steepest) continue;
    steepest = slope;
    found.steepest = point->lr;
  }
  if (steepest == 0.0) return std::nullopt;
  return found;
}

ExitCode find_lr(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                 Backend& backend, Transport& transport) {
  const LrRange& range = options.lr_range;
  std::unique_ptr<AtomicFile> file;
  together(transport, [&] {
    if (config.optimizer.rule->facts().needs_constant_rate) {
      fail(ExitCode::kUsage, "arguments",
           "--lr-find changes the rate at every step, and {} needs one rate in all; leave it out",
           config.optimizer.type);
    }
    if (transport.rank() == 0) file = std::make_unique<AtomicFile>(options.lr_find);
  });
  config.length.epochs = 0.0;
  config.length.steps = range.steps;
  config.optimizer.make_schedule = [range](const ScheduleInputs&) {
    return std::make_unique<GrowingRates>(range);
  };
  std::vector<RangePoint> points;
  bool stopped = false;
  {
    const ShapeTrace trace = trace_shapes(config);
    (void)choose_by_measurement(config, site, trace, backend, transport);
    Trainer trainer(config, site, trace, backend, transport);
    trainer.initialise();
    for (bool more = true; more && static_cast<std::int64_t>(points.size()) < range.steps;) {
      trainer.step();
      LossRecord& losses = trainer.losses();
      losses.drain();
      if (LossScaler* scaler = trainer.loss_scaler()) scaler->settle();
      double told[] = {losses.sum(), static_cast<double>(losses.count()),
                       stop_requested() ? 1.0 : 0.0};
      losses.reset();
      if (transport.size() > 1) transport.world().sum(told, 3);
      more = add_range_point(points, trainer.lr(), told[0] / std::max(told[1], 1.0));
      stopped = told[2] > 0.0;
      more = more && !stopped;
    }
    trainer.finish();
  }
  if (stopped) return ExitCode::kStopped;
  together(transport, [&] {
    if (transport.rank() != 0) return;
    std::string table = "step,lr,loss,smoothed_loss\n";
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto& [lr, loss, smoothed] = points[i];
      table += fmt::format("{},{},{},{}\n", i + 1, lr, loss, smoothed);
    }
    file->write(table.data(), table.size());
    file->commit();
    const auto found = findings_of(points);
    if (!points.empty()) answer(chart(points, found ? found->steepest : -1.0));
    if (static_cast<std::int64_t>(points.size()) < range.steps)
      answer("ended after {} of {} steps, as the loss grew\n", points.size(), range.steps);
    if (!found) {
      answer("the loss does not fall between {} and {}; try --lr-from and --lr-to beyond these\n",
             range.from, range.to);
    } else {
      answer(
          "suggested: --set optimizer.lr={:.2g}, where the loss falls fastest; it is least at "
          "{:.2g}{}\n",
          found->steepest, found->least,
          found->still_falling ? " and still falls there: try a larger --lr-to" : "");
    }
    answer("losses: {}\n", options.lr_find);
  });
  return ExitCode::kOk;
}

}  // namespace starling
