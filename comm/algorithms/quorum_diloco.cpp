#include "comm/algorithms/quorum_diloco.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/algorithms/averages.h"
#include "comm/algorithms/quorum.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

/// DiLoCo with a quorum. Outer step k of all fragments comes after step (k+1)H/F - 1, and is of
/// fragment k mod F:
///     Δ̄ = Σ_j w_j Δ_j / Σ_j w_j over those that take part, in rank order
/// with w_j the steps that rank j trained since its anchor (ranks have batches of one size). Then
/// as diloco.
///
/// A rank that others wait for ends its steps early: once q others have begun to send, and its
/// steps to the outer step would take longer than half the grace that is left, it sends what it has
/// trained so far. It also ends them once it learns that the outer step was taken without it. Then
/// it leaves out the steps up to the outer step, and goes on where the others are. So ranks of
/// different speed stay in the same period, and training ends for all at once.
class QuorumDiLoCo final : public Averages {
 public:
  QuorumDiLoCo(const AlgorithmSite& site, const OuterSettings& settings, double blend,
               const DiLoCoQuorum& quorum)
      : Averages(site, std::make_unique<Alone>(site), settings.states),
        settings_(settings),
        carries_(quorum.carry),
        rule_(make_outer_rule(settings, 1.0, blend)),
        of_fragment_(static_cast<std::size_t>(settings.fragments)),
        trained_(of_fragment_.size()),
        carried_weights_(of_fragment_.size()),
        quorum_(site.transport, site.backend,
                {static_cast<int>(quorum.ranks), quorum.grace_seconds, site.timeout_seconds},
                settings.fragments,
                [this](std::int64_t fragment) { return make_message(fragment); }) {
    require(settings.fragments <= buckets(), "diloco", "{} fragments of {} buckets",
            settings.fragments, buckets());
    std::int64_t largest = 0;
    for (int b = 0; b < buckets(); ++b) {
      of_fragment_[static_cast<std::size_t>(b * settings.fragments / buckets())].push_back(b);
      largest = std::max(largest, bucket(b).parameters.elements());
    }
    mean_ = Tensor(site.backend, Shape{largest}, bucket(0).parameters.dtype());
  }

  void begin(const StepInfo& info) override {
    Averages::begin(info);
    if (!quorum_.listening()) quorum_.listen(next_);
    quorum_.poll();
  }
  void bucket_ready(int b) override {
    Averages::bucket_ready(b);
    quorum_.poll();
  }
  void backward_done() override {
    if (ended_ > 0.0) quorum_.add_inner_step(quorum_.now() - ended_);
    take_outer_steps();
    ended_ = quorum_.now();
  }
  void finish() override {
    Averages::finish();
    outer_.join();
    quorum_.pause(info_.step);
    ended_ = 0.0;  // what comes before the next step is no training
    if (!carries_) return;
    on_update_stream(site_.backend, [&] {
      site_.backend.copy_from_host(carried_weights_.data(), state(0, kCarriedWeights));
    });
  }
  void resume(std::int64_t step) override {
    Averages::resume(step);
    next_ = step / apart();
    for (std::int64_t f = 0; f < settings_.fragments; ++f) {
      std::int64_t last = next_ - 1;
      while (last >= 0 && last % settings_.fragments != f) --last;
      trained_[index(f)] = last < 0 ? step : step - 1 - step_of(last);
    }
    if (!carries_) return;
    on_update_stream(site_.backend, [&] {
      site_.backend.copy_to_host(state(0, kCarriedWeights), carried_weights_.data());
    });
  }
  std::int64_t take_left_out() override { return std::exchange(left_out_, 0); }
  std::vector<Meeting> take_meetings() override { return std::exchange(meetings_, {}); }
  void ask_to_stop() override { stop_ = true; }

 protected:
  bool meets(int b, std::int64_t t) const override { return settings_.meets(b, buckets(), t); }
  void first_step() override { copy_parameters_to(kAnchor); }
  void start(int) override {}
  void meet(int b) override {
    if (!decision_) agree();
    // The mean's memory is used for one bucket after the other
    const Tensor mean = mean_of(b);
    apply(b, *rule_, {state(b, kMomentum), state(b, kAnchor)}, mean, bucket(b).parameters);
  }

 private:
  enum State : std::size_t { kAnchor, kMomentum, kCarried, kCarriedWeights };
  static constexpr std::size_t kMostTerms = 8;  // of WeightedSum

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::int64_t apart() const { return settings_.period / settings_.fragments; }
  std::int64_t step_of(std::int64_t outer) const { return (outer + 1) * apart() - 1; }
  std::size_t fragment() const { return index(next_ % settings_.fragments); }
  std::vector<Tensor> make_message(std::int64_t fragment) const {
    std::vector<Tensor> message;
    for (const int b : of_fragment_[index(fragment)]) {
      const Tensor& like = bucket(b).parameters;
      message.emplace_back(site_.backend, like.shape(), like.dtype());
    }
    return message;
  }

  /// Whether this rank trains no further before the outer step, from which it is `left` steps.
  bool ends_steps(std::int64_t left) const {
    if (left == 0 || quorum_.decided()) return true;
    return quorum_.formed() &&
           2.0 * static_cast<double>(left) * quorum_.pace() > quorum_.grace_left();
  }

  /// After an inner step: the outer step, if there is one, and those that others have taken since.
  void take_outer_steps() {
    for (std::int64_t& steps : trained_) ++steps;
    quorum_.poll();
    const std::int64_t own = info_.step;
    if (ends_steps(step_of(next_) - own)) info_.step = step_of(next_);
    Averages::backward_done();  // which takes the outer step, if there is one
    if (info_.step != step_of(next_)) return;
    go_on();
    while (ends_steps(step_of(next_) - info_.step)) {
      info_.step = step_of(next_);
      meet_buckets();
      go_on();
    }
    left_out_ += info_.step - own;
  }

  /// Takes part in the outer step, or hears that it was taken without this rank.
  void agree() {
    const std::size_t f = fragment();
    const double own = static_cast<double>(trained_[f]), carried = carried_weights_[f];
    const double weight = own + carried;
    const std::vector<int>& of = of_fragment_[f];
    const bool late = quorum_.decided();
    if (!late && weight > 0.0) {
      for (std::size_t k = 0; k < of.size(); ++k)
        take_difference(of[k], own, carried, quorum_.message()[k]);
    }
    if (!late) quorum_.send(weight, stop_, info_.step);
    wait_by(of.front(), [&] { decision_ = &quorum_.await(info_.step); });
    meetings_.push_back({info_.step, decision_->participants(), decision_->stop});
    const bool taken = decision_->weights[index(site_.transport.rank())] > 0.0;
    for (std::size_t k = 0; carries_ && !taken && weight > 0.0 && k < of.size(); ++k) {
      const Tensor& kept = state(of[k], kCarried);
      if (late) {
        take_difference(of[k], own, carried, kept);
      } else {
        const StreamScope scope(site_.backend, StreamKind::kUpdate);
        site_.backend.copy(quorum_.message()[k], kept);
      }
    }
    carried_weights_[f] = carries_ && !taken ? weight : 0.0;
  }
  /// Δ = a - x, with what is carried: (own Δ + carried Δ') / (own + carried).
  void take_difference(int b, double own, double carried, const Tensor& out) {
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    const double share = carried > 0.0 ? own / (own + carried) : 1.0;
    WeightedSum sum{.in = {state(b, kAnchor), bucket(b).parameters},
                    .weight = {share, -share},
                    .terms = 2,
                    .out = out};
    if (carried > 0.0) {
      sum.in[2] = state(b, kCarried);
      sum.weight[2] = 1.0 - share;
      sum.terms = 3;
    }
    site_.backend.weighted_sum(sum);
  }
  Tensor mean_of(int b) {
    const std::vector<int>& of = of_fragment_[fragment()];
    const auto k = index(std::find(of.begin(), of.end(), b) - of.begin());
    double total = 0.0;
    for (const double weight : decision_->weights) total += weight;
    const Tensor mean = mean_.slice(0, Shape{bucket(b).parameters.elements()});
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    const std::vector<int> ranks = decision_->participants();
    for (std::size_t first = 0; first < ranks.size(); first += kMostTerms) {
      WeightedSum sum{.out = mean, .accumulate = first > 0};
      for (std::size_t i = first; i < std::min(ranks.size(), first + kMostTerms); ++i) {
        sum.in[i - first] = quorum_.difference_of(ranks[i])[k];
        sum.weight[i - first] = decision_->weights[index(ranks[i])] / total;
        ++sum.terms;
      }
      site_.backend.weighted_sum(sum);
    }
    return mean;
  }
  void go_on() {
    trained_[fragment()] = 0;
    decision_ = nullptr;
    quorum_.next();
    ++next_;
    quorum_.poll();
  }

  OuterSettings settings_;
  bool carries_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<std::vector<int>> of_fragment_;  ///< buckets
  std::vector<std::int64_t> trained_;          ///< by fragment: steps since its anchor
  std::vector<double> carried_weights_;        ///< by fragment; 0: nothing is carried
  Tensor mean_;
  Quorum quorum_;
  std::int64_t next_ = 0;                     ///< the next outer step
  const QuorumDecision* decision_ = nullptr;  ///< of the outer step that is being taken
  std::vector<Meeting> meetings_;
  std::int64_t left_out_ = 0;
  bool stop_ = false;
  double ended_ = 0.0;  ///< when the last step ended, its outer steps included; 0: unknown
};

}  // namespace

std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of_quorum_diloco(
    const OuterSettings& settings, double blend, const DiLoCoQuorum& quorum) {
  return maker_of<QuorumDiLoCo>(settings, blend, quorum);
}

}  // namespace starling
