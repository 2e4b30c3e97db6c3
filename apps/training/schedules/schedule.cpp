#include "apps/training/schedules/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace starling {
namespace {

/// The warm-up that every schedule has: the rate is multiplied by s + (1-s)·t/W for t < W.
struct Warmup {
  std::int64_t steps;  ///< W
  double factor;       ///< s

  Warmup(ConfigSection& config, const ScheduleInputs& run)
      : steps(config.integer("warmup_steps", 0, Range::at_least(0.0),
                             "updates over which the rate grows to its full value")),
        factor(config.number("warmup_factor", 0.01, Range::closed(0.0, 1.0),
                             "share of the rate at the first update of the warm-up")) {
    const double epochs = config.number("warmup_epochs", 0.0, Range::closed(0.0, 1e9),
                                        "the same in epochs; 0: `warmup_steps` says it");
    if (epochs == 0.0) return;
    if (steps != 0)
      config.error("warmup_epochs", "is {}, and warmup_steps {}; give one of them", epochs, steps);
    steps = std::llround(epochs * run.steps_per_epoch);
  }
  double multiplier(std::int64_t t) const {
    if (t >= steps) return 1.0;
    return factor + (1.0 - factor) * static_cast<double>(t) / static_cast<double>(steps);
  }
};

/// floor((t / steps_per_epoch) / epochs), also where the quotient is whole but for rounding.
std::int64_t whole_periods(std::int64_t t, double steps_per_epoch, double epochs) {
  const double periods = static_cast<double>(t) / (steps_per_epoch * epochs);
  return static_cast<std::int64_t>(std::floor(std::min(periods * (1.0 + 1e-12), 1e15)));
}

/// A schedule that is a formula.
template <class F>
class Formula final : public Schedule {
 public:
  explicit Formula(F rate) : rate_(std::move(rate)) {}
  double lr(std::int64_t t) const override { return rate_(t); }

 private:
  F rate_;
};

/// Adds a schedule. `make` reads its keys after the warm-up's, and returns the rate of update t.
template <class Make>
void add(const char* name, const char* summary, Make make) {
  schedules().add(
      name,
      [make](ConfigSection& config, const ScheduleInputs& run) -> std::unique_ptr<Schedule> {
        const Warmup warmup(config, run);
        return std::make_unique<Formula<decltype(make(config, run, warmup))>>(
            make(config, run, warmup));
      },
      summary);
}

void add_all() {
  add("constant", "the same rate throughout",
      [](ConfigSection&, const ScheduleInputs& run, const Warmup& warmup) {
        return [=](std::int64_t t) { return run.base_lr * warmup.multiplier(t); };
      });

  // From the base rate down to `min_lr` after the warm-up (Loshchilov & Hutter 2017, 1608.03983).
  add("cosine", "half a cosine down to min_lr",
      [](ConfigSection& config, const ScheduleInputs& run, const Warmup& warmup) {
        const double min_lr =
            config.number("min_lr", 1e-6, Range::at_least(0.0), "rate at the end of the run");
        const std::int64_t length = run.total_steps - warmup.steps;
        return [=](std::int64_t t) {
          if (t < warmup.steps) return run.base_lr * warmup.multiplier(t);
          const std::int64_t since = t - warmup.steps;
          if (since >= length) return min_lr;
          const double phase =
              std::numbers::pi * static_cast<double>(since) / static_cast<double>(length);
          return min_lr + (run.base_lr - min_lr) * (1.0 + std::cos(phase)) / 2.0;
        };
      });

  // base·gamma^(milestones passed); milestones are in epochs, fractions allowed.
  add("multistep", "times gamma at each of the milestones",
      [](ConfigSection& config, const ScheduleInputs& run, const Warmup& warmup) {
        const std::vector<double> milestones = config.numbers(
            "milestones", {}, Range::positive(), "epochs at which the rate is reduced, ascending");
        for (std::size_t i = 1; i < milestones.size(); ++i) {
          if (milestones[i] <= milestones[i - 1]) {
            config.error("milestones", "found {} after {}, expected ascending epochs",
                         milestones[i], milestones[i - 1]);
          }
        }
        const double gamma =
            config.number("gamma", 0.1, Range::positive(), "factor of a reduction");
        return [=](std::int64_t t) {
          const auto passed =
              static_cast<double>(std::ranges::count_if(milestones, [&](double milestone) {
                return whole_periods(t, run.steps_per_epoch, milestone) >= 1;
              }));
          return run.base_lr * std::pow(gamma, passed) * warmup.multiplier(t);
        };
      });

  // base·gamma^floor(epoch / step_size).
  add("step", "times gamma every step_size epochs",
      [](ConfigSection& config, const ScheduleInputs& run, const Warmup& warmup) {
        const double step_size =
            config.number("step_size", 30.0, Range::positive(), "epochs between two reductions");
        const double gamma =
            config.number("gamma", 0.1, Range::positive(), "factor of a reduction");
        return [=](std::int64_t t) {
          const auto reductions =
              static_cast<double>(whole_periods(t, run.steps_per_epoch, step_size));
          return run.base_lr * std::pow(gamma, reductions) * warmup.multiplier(t);
        };
      });

  // From the base rate at the first update after the warm-up to `final_lr` at the last update.
  add("linear", "a straight line to final_lr",
      [](ConfigSection& config, const ScheduleInputs& run, const Warmup& warmup) {
        const double final_lr =
            config.number("final_lr", 0.0, Range::at_least(0.0), "rate of the last update");
        const std::int64_t last = run.total_steps - 1 - warmup.steps;
        return [=](std::int64_t t) {
          if (t < warmup.steps) return run.base_lr * warmup.multiplier(t);
          const std::int64_t since = t - warmup.steps;
          if (since >= last) return final_lr;
          return run.base_lr +
                 (final_lr - run.base_lr) * static_cast<double>(since) / static_cast<double>(last);
        };
      });

  // The base rate, then a straight line that comes to `min_lr` with the last of `decay_steps`
  // updates (Hu et al. 2024, arXiv 2404.06395).
  add("wsd", "the same rate after the warm-up, and in the last decay_steps a line to min_lr",
      [](ConfigSection& config, const ScheduleInputs& run, const Warmup& warmup) {
        const std::int64_t decay = config.required_integer(
            "decay_steps", Range::closed(1, 1e12), "updates over which the rate falls", 1000);
        const double min_lr =
            config.number("min_lr", 0.0, Range::at_least(0.0), "rate of the last update");
        return [=](std::int64_t t) {
          const std::int64_t left = std::max<std::int64_t>(run.total_steps - 1 - t, 0);
          const double share =
              std::min(1.0, static_cast<double>(left) / static_cast<double>(decay));
          return min_lr + (run.base_lr * warmup.multiplier(t) - min_lr) * share;
        };
      });

  // base·sqrt(max(W, 1) / max(t, W, 1)) (Vaswani et al. 2017, arXiv 1706.03762).
  add("inverse_sqrt", "falls with the square root of the update's number",
      [](ConfigSection&, const ScheduleInputs& run, const Warmup& warmup) {
        const std::int64_t start = std::max<std::int64_t>(warmup.steps, 1);
        return [=](std::int64_t t) {
          const double fraction =
              static_cast<double>(start) / static_cast<double>(std::max(t, start));
          return run.base_lr * std::sqrt(fraction) * warmup.multiplier(t);
        };
      });
}

}  // namespace

ScheduleRegistry& schedules() {
  static ScheduleRegistry registry("schedule");
  return registry;
}

void register_builtin_schedules() {
  static const bool once = (add_all(), true);
  (void)once;
}

}  // namespace starling
