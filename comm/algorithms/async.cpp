#include <chrono>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/builtin.h"
#include "kernels/optimizers/linear.h"

namespace starling {
namespace {

/// Asynchronous model average (Bagua, Gan et al. 2021, arXiv 2107.01499): x' = U(x, g), and no step
/// waits for another rank. A rank that is `interval` past the end of its last average begins the
/// next between two steps: it keeps s = x and starts the mean s̄ of all ranks' s, which is there
/// once the slowest has begun too. Between two steps after that
///     x = x + s̄ - s
/// so that progress made since the average started is kept. Ranks may start their k-th average in
/// different steps; exchanges are matched by k.
class Asynchronous final : public Averages {
 public:
  Asynchronous(const AlgorithmSite& site, std::int64_t interval_ms)
      : Averages(site, std::make_unique<Alone>(site), StatesAt::kLocal),
        interval_(interval_ms),
        alone_(site.transport.size() == 1) {
    if (alone_) return;  // the mean is s, so nothing moves
    snapshots_ = like_parameters();
    // p is x, the state s, g the sum of all ranks' s.
    add_ = make_linear_rule(1, 0, [share = means_.share()](double) {
      return LinearTerms{.x = {.p = 1.0, .s = {-1.0}, .g = share}};
    });
  }

  void begin(const StepInfo& info) override {
    if (!alone_) {
      if (ended_ == Clock::time_point()) ended_ = Clock::now();
      if (under_way_ && arrived()) use();
      if (!under_way_ && Clock::now() - ended_ >= interval_) start_average(info);
      agreed_ = false;
    }
    Averages::begin(info);
  }
  /// Collective. No rank can be two averages ahead, as each takes all of them; but some may have
  /// begun one that others have not.
  void finish() override {
    Averages::finish();
    if (alone_ || agreed_) return;
    auto most = static_cast<double>(started_);
    site_.transport.world().max(&most, 1);
    while (under_way_ || started_ < static_cast<std::int64_t>(most)) {
      if (!under_way_) start_average(info_);
      use();
    }
    agreed_ = true;
  }

 protected:
  bool meets(int, std::int64_t) const override { return false; }  // between steps, see begin()
  void meet(int) override {}

 private:
  using Clock = std::chrono::steady_clock;

  void start_average(const StepInfo& info) {
    for (int b = 0; b < buckets(); ++b) {
      const Tensor& snapshot = snapshots_[static_cast<std::size_t>(b)];
      on_update_stream(site_.backend, [&] { site_.backend.copy(bucket(b).parameters, snapshot); });
      means_.start(b, snapshot, info, Lane::kAside);
    }
    under_way_ = true;
    ++started_;
  }
  bool arrived() {
    for (int b = 0; b < buckets(); ++b) {
      if (!site_.transport.done(means_.ticket(b))) return false;
    }
    return true;
  }
  /// Waits for the average if it has not arrived.
  void use() {
    for (int b = 0; b < buckets(); ++b) {
      const Tensor sum = wait_mean(b);
      apply(b, *add_, {snapshots_[static_cast<std::size_t>(b)]}, sum, bucket(b).parameters);
    }
    outer_.join();
    under_way_ = false;
    ended_ = Clock::now();
  }

  std::chrono::milliseconds interval_;
  bool alone_;
  std::vector<Tensor> snapshots_;  ///< by bucket: s
  std::unique_ptr<OptimizerRule> add_;
  /// `agreed_`: no step since all ranks had the same averages
  bool under_way_ = false, agreed_ = true;
  std::int64_t started_ = 0;
  Clock::time_point ended_;  ///< of the last average; before one, when steps began
};

}  // namespace

AlgorithmPlan plan_async(ConfigSection& config) {
  const std::int64_t warmup = config.integer("warmup", 0, Range::closed(0, 1e6),
                                             "steps by allreduce before ranks go apart");
  const std::int64_t interval_ms =
      config.integer("interval_ms", 500, Range::closed(0, 1e6),
                     "milliseconds from the end of an average to the next one's begin");
  return {.title = "asynchronous averaging",
          .scratch = 2,
          .steps = {.keys = {{"warmup", warmup, false}}, .asynchronous = true},
          .equality = {.mean_gradients_before = warmup},
          .cost = {.exchanges = {{.what = PlannedExchange::kModels,
                                  .pause = 1e-3 * static_cast<double>(interval_ms)}}},
          .make = [=](const AlgorithmSite& site) {
            return after_warmup(site, warmup, std::make_unique<Asynchronous>(site, interval_ms));
          }};
}

}  // namespace starling
