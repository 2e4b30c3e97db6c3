#include <algorithm>
#include <utility>

#include "comm/algorithms/outer_steps.h"
#include "comm/algorithms/quorum.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

/// DiLoCo with a quorum. Outer step k of all fragments comes after step (k+1)H/F - 1, and is of
/// fragment k mod F:
///     Δ̄ = Σ_j w_j C(Δ_j) / Σ_j w_j over those that take part, in rank order
/// with w_j the steps that rank j trained since its anchor (ranks have batches of one size). Then
/// as diloco. The residual of a rank that did not take part stays as it was.
///
/// A rank that others wait for ends its steps early: once q others have begun to send, and its
/// steps to the outer step would take longer than half the grace that is left, it sends what it has
/// trained so far. It also ends them once it learns that the outer step was taken without it. Then
/// it skips the steps up to the outer step, and continues where the others are. So ranks of
/// different speed stay in the same period, and training ends for all at once.
class QuorumDiLoCo final : public Averages {
 public:
  QuorumDiLoCo(const AlgorithmSite& site, const OuterSettings& settings, double blend,
               const DiLoCoQuorum& quorum, DifferenceCode code)
      : Averages(site, std::make_unique<Alone>(site), settings.states),
        settings_(settings),
        carries_(quorum.carry),
        rule_(make_outer_rule(settings, 1.0, blend)),
        // A single rank encodes nothing
        code_(site.transport.size() > 1 ? code : DifferenceCode{.error_decay = code.error_decay}),
        messages_(site, code_),
        of_fragment_(static_cast<std::size_t>(settings.fragments)),
        begins_(index(buckets())),
        trained_(of_fragment_.size()),
        carried_weights_(of_fragment_.size()),
        quorum_(
            site.transport, site.backend,
            {.ranks = static_cast<int>(std::min<std::int64_t>(quorum.ranks, site.transport.size())),
             .grace_seconds = quorum.grace_seconds,
             .timeout_seconds = site.timeout_seconds,
             .most_weight = static_cast<double>(apart())},
            lay_out()) {
    std::int64_t largest = 0;
    for (int b = 0; b < buckets(); ++b)
      largest = std::max(largest, bucket(b).parameters.elements());
    mean_ = Tensor(site.backend, Shape{largest}, bucket(0).parameters.dtype());
    if (feeds_back()) residuals_before_ = like_parameters();
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
    on_update_stream(site_.backend,
                     [&] { site_.backend.copy_to_host(kept_weights(), carried_weights_.data()); });
  }
  std::int64_t take_left_out() override { return std::exchange(left_out_, 0); }
  std::vector<Meeting> take_meetings() override { return std::exchange(meetings_, {}); }
  void ask_to_stop() override { asks_.stop = true; }
  void ask_to_join() override { asks_.join = true; }

 protected:
  bool meets(int b, std::int64_t t) const override { return settings_.meets(b, buckets(), t); }
  void first_step() override { copy_parameters_to(kAnchor); }
  void start(int) override {}
  void settle(int) override {
    if (!decision_) agree();
  }
  void meet(int b) override {
    // The mean's memory is used for one bucket after the other
    const Tensor mean = mean_of(b);
    apply(b, *rule_, {state(b, kMomentum), state(b, kAnchor)}, mean, bucket(b).parameters);
  }

 private:
  enum State : std::size_t { kAnchor, kMomentum, kResidual };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::int64_t apart() const { return settings_.period / settings_.fragments; }
  std::int64_t step_of(std::int64_t outer) const { return (outer + 1) * apart() - 1; }
  std::size_t fragment() const { return index(next_ % settings_.fragments); }
  bool feeds_back() const { return code_.error_decay > 0.0; }
  /// The states that follow the residual, if there is one.
  Tensor kept_difference(int b) { return state(b, kResidual + (feeds_back() ? 1 : 0)); }
  Tensor kept_weights() { return state(0, kResidual + (feeds_back() ? 2 : 1)); }
  /// A fragment's difference is one message: its buckets' parts, each from a place on that suits
  /// all numbers.
  std::vector<QuorumFormat> lay_out() {
    require(settings_.fragments <= buckets(), "diloco", "{} fragments of {} buckets",
            settings_.fragments, buckets());
    constexpr std::int64_t kAlignment = 64;
    std::vector<QuorumFormat> formats(of_fragment_.size(), {.code = code_.number()});
    for (int b = 0; b < buckets(); ++b) {
      const std::size_t f = index(b * settings_.fragments / buckets());
      of_fragment_[f].push_back(b);
      begins_[index(b)] = (formats[f].bytes + kAlignment - 1) / kAlignment * kAlignment;
      formats[f].bytes = begins_[index(b)] + messages_.bytes(b);
      formats[f].most_bytes += 16 * bucket(b).parameters.elements() + kAlignment;
    }
    return formats;
  }
  Tensor part(const Tensor& message, int b) const {
    return message.slice(begins_[index(b)], Shape{messages_.bytes(b)});
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
    const bool late = quorum_.decided(), sends = !late && weight > 0.0;
    for (std::size_t k = 0; sends && k < of.size(); ++k) encode(of[k], own, carried);
    if (!late) quorum_.send(weight, asks_, info_.step);
    wait_by(of.front(), [&] { decision_ = &quorum_.await(info_.step); });
    meetings_.push_back(
        {info_.step, decision_->participants(), decision_->asks.stop, decision_->asks.join});
    const bool taken = decision_->weights[index(site_.transport.rank())] > 0.0;
    for (std::size_t k = 0; !taken && weight > 0.0 && k < of.size(); ++k) {
      const StreamScope scope(site_.backend, StreamKind::kUpdate);
      if (sends && feeds_back())
        site_.backend.copy(residuals_before_[index(of[k])], state(of[k], kResidual));
      if (carries_) take_difference(of[k], own, carried, kept_difference(of[k]));
    }
    carried_weights_[f] = carries_ && !taken ? weight : 0.0;
    if (!carries_) return;
    on_update_stream(site_.backend, [&] {
      site_.backend.copy_from_host(carried_weights_.data(), kept_weights());
    });
  }
  /// This rank's part of its message. The residual changes, for the case that it takes part.
  void encode(int b, double own, double carried) {
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    const Tensor to = part(quorum_.message(), b),
                 left = feeds_back() ? state(b, kResidual) : Tensor();
    if (left) site_.backend.copy(left, residuals_before_[index(b)]);
    if (carried == 0.0)
      return messages_.encode(b, state(b, kAnchor), bucket(b).parameters, left, to);
    const Tensor difference = scratch(b);
    take_difference(b, own, carried, difference);
    messages_.encode(b, difference, {}, left, to);
  }
  /// Δ = a - x, with what is carried: (own Δ + carried Δ') / (own + carried).
  void take_difference(int b, double own, double carried, const Tensor& out) {
    const double share = carried > 0.0 ? own / (own + carried) : 1.0;
    WeightedSum sum{.in = {state(b, kAnchor), bucket(b).parameters},
                    .weight = {share, -share},
                    .terms = 2,
                    .out = out};
    if (carried > 0.0) {
      sum.in[2] = kept_difference(b);
      sum.weight[2] = 1.0 - share;
      sum.terms = 3;
    }
    site_.backend.weighted_sum(sum);
  }
  Tensor scratch(int b) { return mean_.slice(0, Shape{bucket(b).parameters.elements()}); }
  Tensor mean_of(int b) {
    std::vector<Tensor> messages;
    std::vector<double> weights;
    for (const int j : decision_->participants()) {
      messages.push_back(part(quorum_.difference_of(j), b));
      weights.push_back(decision_->weights[index(j)]);
    }
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    messages_.mean(b, messages, weights, scratch(b));
    return scratch(b);
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
  DifferenceCode code_;
  DifferenceMessages messages_;
  std::vector<std::vector<int>> of_fragment_;  ///< buckets
  std::vector<std::int64_t> begins_;           ///< by bucket: of its part of a message
  std::vector<std::int64_t> trained_;          ///< by fragment: steps since its anchor
  std::vector<double> carried_weights_;        ///< by fragment; 0: nothing is carried
  Tensor mean_;                                ///< of a bucket, or its difference
  std::vector<Tensor> residuals_before_;  ///< by bucket: for a difference that arrives too late
  Quorum quorum_;
  std::int64_t next_ = 0;                     ///< the next outer step
  const QuorumDecision* decision_ = nullptr;  ///< of the outer step that is being taken
  std::vector<Meeting> meetings_;
  std::int64_t left_out_ = 0;
  QuorumAsks asks_;
  double ended_ = 0.0;  ///< when the last step ended, its outer steps included; 0: unknown
};

}  // namespace

std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of_quorum_diloco(
    const OuterSettings& settings, double blend, const DiLoCoQuorum& quorum,
    const DifferenceCode& code) {
  return maker_of<QuorumDiLoCo>(settings, blend, quorum, code);
}

}  // namespace starling
