#include "apps/training/lr_find.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>

#include "apps/training/auto/auto_plan.h"
#include "apps/training/trainer.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/file_io.h"
#include "core/stop_signals.h"

namespace starling {
namespace {

/// Share of the smoothed loss that stays at a step, and how many times the least ends the test.
constexpr double kSmoothing = 0.98, kMostRise = 4.0;

constexpr std::string_view kRatesBegin = "step,lr,loss,smoothed_loss\n";

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
std::string chart(const RangeFindings& found) {
  constexpr std::size_t kRows = 20, kWidth = 44;
  const auto& [rates, curve] = std::tie(found.rates, found.curve);
  const auto [low, high] = std::minmax_element(curve.begin(), curve.end());
  const double marked = found.steepest.value_or(-1.0), range = *high - *low;
  const std::size_t rows = std::min(kRows, curve.size());
  std::string text = fmt::format("{:>10}  {:>9}\n", "lr", "loss");
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t begin = row * curve.size() / rows, end = (row + 1) * curve.size() / rows;
    const bool here = marked >= rates[begin] && (end == rates.size() || marked < rates[end]);
    const double share = range > 0.0 ? (curve[begin] - *low) / range : 0.0;
    text += fmt::format("{:>10.2e}  {:>9.4g}  {}{}\n", rates[begin], curve[begin],
                        std::string(1 + static_cast<std::size_t>(share * (kWidth - 1)), '#'),
                        here ? "  <- suggested" : "");
  }
  return text;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The `width` values around the i-th, shifted to be in range.
std::span<const double> around(const std::vector<double>& values, std::size_t i,
                               std::size_t width) {
  const std::size_t begin = i < width / 2 ? 0 : std::min(i - width / 2, values.size() - width);
  return std::span(values).subspan(begin, width);
}

/// The values, but where one is far from the median of those around, that.
std::vector<double> without_spikes(const std::vector<double>& values) {
  const std::size_t width = std::max<std::size_t>(3, values.size() / 10) | 1;
  std::vector<double> medians, distances;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto near = around(values, i, width);
    medians.push_back(median_of({near.begin(), near.end()}));
    distances.push_back(std::abs(values[i] - medians[i]));
  }
  const double usual = 1.4826 * median_of(distances);  // a normal distribution's deviation
  for (std::size_t i = 0; i < values.size(); ++i)
    if (distances[i] <= 4.0 * usual) medians[i] = values[i];
  return medians;
}

/// A straight line through values at 0, 1, 2, …: its slope, and that in standard errors.
struct Line {
  double slope, certainty;
};
Line line_through(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double xx = 0.0, xy = 0.0, yy = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - (n - 1.0) / 2.0, y = values[i] - mean;
    xx += x * x, xy += x * y, yy += y * y;
  }
  const double rest = std::max(yy - xy * xy / xx, 1e-12 * yy) / (n - 2.0);
  return {xy / xx, rest > 0.0 ? xy / xx / std::sqrt(rest / xx) : 0.0};
}

}  // namespace

bool add_range_point(std::vector<RangePoint>& points, double lr, double loss) {
  if (!std::isfinite(loss)) return false;
  const double before = points.empty() ? 0.0 : points.back().smoothed;
  const auto count = static_cast<double>(points.size());
  // The mean's numerator is what it is times the weights so far.
  const double weights = 1.0 - std::pow(kSmoothing, count),
               sum = kSmoothing * before * weights + (1.0 - kSmoothing) * loss;
  const double smoothed = sum / (1.0 - std::pow(kSmoothing, count + 1.0));
  const double least = points.empty() ? smoothed : std::min(points.back().least, smoothed);
  points.push_back({lr, loss, smoothed, least});
  return smoothed <= kMostRise * least;
}

std::optional<RangeFindings> findings_of(const std::vector<RangePoint>& points) {
  constexpr std::size_t kMostStretches = 200, kLeastWidth = 7;
  if (points.size() < kLeastWidth) return std::nullopt;
  RangeFindings found;
  std::vector<double> losses;
  const std::size_t stretch = (points.size() + kMostStretches - 1) / kMostStretches;
  for (std::size_t begin = 0; begin < points.size(); begin += stretch) {
    const std::size_t end = std::min(begin + stretch, points.size());
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].loss;
    losses.push_back(sum / static_cast<double>(end - begin));
    found.rates.push_back(points[(begin + end - 1) / 2].lr);
  }
  losses = without_spikes(losses);
  const std::size_t width = std::max(kLeastWidth, losses.size() / 5) | 1;
  // Of all stretches with noise alone, one in some hundred tests looks like a fall by this.
  const double certain = 3.9 + 25.0 / static_cast<double>(width - 2);
  std::vector<Line> lines;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto near = around(losses, i, width);
    found.curve.push_back(std::accumulate(near.begin(), near.end(), 0.0) /
                          static_cast<double>(width));
    lines.push_back(line_through(near));
  }
  const auto least =
      static_cast<std::size_t>(std::ranges::min_element(found.curve) - found.curve.begin());
  found.least = found.rates[least];
  found.still_falling = least + width / 2 + 1 >= losses.size();
  double steepest = 0.0;
  for (std::size_t i = width / 2; i <= least && i + width / 2 < losses.size(); ++i) {
    if (lines[i].slope >= steepest || lines[i].certainty > -certain) continue;
    steepest = lines[i].slope;
    found.steepest = found.rates[i];
  }
  return found;
}

ExitCode find_lr(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                 Backend& backend, Transport& transport) {
  const LrRange& range = options.lr_range;
  std::unique_ptr<AtomicFile> file;
  on_all_ranks(transport, [&] {
    if (config.optimizer.rule->facts().needs_constant_rate) {
      fail(ExitCode::kUsage, "arguments",
           "--lr-find changes the rate at every step, and {} needs one rate in all; leave it out",
           config.optimizer.type);
    }
    if (transport.rank() == 0)
      file = open_output("--lr-find", options.lr_find, {{kRatesBegin}, "table of rates"});
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
      transport.world().sum(told, 3);
      more = add_range_point(points, trainer.lr(), told[0] / std::max(told[1], 1.0));
      stopped = told[2] > 0.0;
      more = more && !stopped;
    }
    trainer.finish();
  }
  if (stopped) return ExitCode::kStopped;
  on_all_ranks(transport, [&] {
    if (transport.rank() != 0) return;
    std::string table(kRatesBegin);
    for (std::size_t i = 0; i < points.size(); ++i)
      table +=
          fmt::format("{},{},{},{}\n", i + 1, points[i].lr, points[i].loss, points[i].smoothed);
    file->write(table.data(), table.size());
    file->commit();
    const auto found = findings_of(points);
    if (found) answer(chart(*found));
    if (static_cast<std::int64_t>(points.size()) < range.steps)
      answer("ended after {} of {} steps, as the loss grew\n", points.size(), range.steps);
    if (!found || !found->steepest) {
      answer(
          "no suggestion: between {} and {} no fall of the loss stands out of its noise; try more "
          "--lr-steps, a larger batch_size, or rates beyond these\n",
          range.from, points.empty() ? range.to : points.back().lr);
    } else {
      answer(
          "suggested: --set optimizer.lr={:.2g}, where the loss falls fastest; it is least at "
          "{:.2g}{}\n",
          *found->steepest, found->least,
          found->still_falling ? " and still falls there: try a larger --lr-to" : "");
    }
    answer("losses: {}\n", options.lr_find);
  });
  return ExitCode::kOk;
}

}  // namespace starling
