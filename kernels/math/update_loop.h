#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/host_device.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"

// Turns a rule (see kernels/math/rules.h for what one is) into an OptimizerRule: mixing, scaling,
// decay and the rule in one pass over memory. A rule of one's own is a struct and a registration:
//
//     template <class T> struct SignStep {                       // one element, one step
//       using Real = T;
//       static constexpr int kStates = 1;
//       static constexpr unsigned kReads = 1, kWrites = 1;
//       T lr, beta;
//       STARLING_HD T operator()(T p, T g, T* state, bool) const {
//         state[0] = beta * state[0] + (1 - beta) * g;
//         return p - lr * (state[0] > 0 ? T(1) : T(-1));
//       }
//     };
//     struct Sign {                                              // the settings
//       double beta = 0.9;
//       std::vector<std::string> state_names() const { return {"momentum"}; }
//       template <class T, class Run> void step(double lr, std::int64_t, Run&& run) const {
//         run(SignStep<T>{T(lr), T(beta)});
//       }
//     };
//     optimizers().add("sign", [](ConfigSection& c) -> std::unique_ptr<OptimizerRule> {
//       return std::make_unique<RuleKernel<Sign>>(
//           Sign{c.number("beta", 0.9, Range::half_open(0, 1), "decay of the mean")}); });

namespace starling {

/// A step that measures layers first: what it measures of an element, and how a layer's factor
/// follows from the two norms, are its own (LarsStep, LambStep); its operator() takes the factor of
/// the element's layer too.
///     static constexpr bool kMeasures = true;
///     static constexpr unsigned kMeasureReads                 bit k: measured() reads state k
///     T measured(T p, T g, const T* state, bool decay) const
///     double layer_factor(double parameter, double measured, bool weight, bool decays) const
///                                                             of the sums of squares; one that
///                                                             needs to know of how many takes
///                                                             `std::int64_t numbers` as well
///     T operator()(T p, T g, T* state, bool decay, T factor) const
template <class Step>
inline constexpr bool kMeasuresLayers = requires {
  Step::kMeasures;
};

namespace detail {

/// A layer's factor; `numbers`: of how many elements the squares are.
template <class Step>
STARLING_HD double layer_factor_of(const Step& step, double parameter, double measured, bool weight,
                                   bool decays, std::int64_t numbers) {
  if constexpr (requires { step.layer_factor(parameter, measured, weight, decays, numbers); }) {
    return step.layer_factor(parameter, measured, weight, decays, numbers);
  } else {
    return step.layer_factor(parameter, measured, weight, decays);
  }
}

/// Elements that share one decay entry; every span is a multiple of it.
inline constexpr int kUpdateBlock = 32;

/// The mix as kernels compute it: self_weight · x + the terms from `skip` on.
struct Mixture {
  const Tensor* x = nullptr;
  double self_weight = 1.0;
  std::size_t skip = 0;
};
inline Mixture mixture_of(const UpdateArgs& args) {
  if (args.received.empty()) return {&args.x, 1.0, 0};
  // A group's sum holds this rank's share already: x need not be read.
  if (args.self_weight == 0.0) return {&args.received[0], args.weights[0], 1};
  return {&args.x, args.self_weight, 0};
}

/// Bytes that loads run ahead of the arithmetic: hardware prefetchers stop at page ends and follow
/// eight streams badly.
inline constexpr std::int64_t kPrefetchBytes = 2048;

template <class T>
[[gnu::always_inline]] inline void prefetch_block(const T* block) {
  const char* bytes = reinterpret_cast<const char*>(block) + kPrefetchBytes;
  for (std::size_t line = 0; line < kUpdateBlock * sizeof(T); line += 64)
    __builtin_prefetch(bytes + line);
}

/// One block. Terms is the number of neighbours (0 or more), or -1 where it is known at run time
/// only. x_out may be x: every element is read before it is written, and elements are independent.
template <int Terms, class Step, class T, std::size_t... K>
[[gnu::always_inline]] inline void update_block(const Step& step, const UpdateSpan<T>& span,
                                                std::int64_t first, bool decay,
                                                std::index_sequence<K...>) {
  const T* x = span.x + first;
  T* x_out = span.x_out + first;
  const T* gradient = span.gradient + first;
  T* const states[sizeof...(K) + 1] = {span.states[K] + first..., nullptr};
  const T self_weight = span.self_weight, scale = span.gradient_scale;
  prefetch_block(x);
  prefetch_block(x_out);
  prefetch_block(gradient);
  (prefetch_block(states[K]), ...);
  if constexpr (Terms > 0) prefetch_block(span.received[0] + first);
  if constexpr (Terms > 1) prefetch_block(span.received[1] + first);
  T mixed[Terms < 0 ? kUpdateBlock : 1];
  if constexpr (Terms < 0) {
#pragma GCC ivdep
    for (int i = 0; i < kUpdateBlock; ++i) mixed[i] = self_weight * x[i];
    for (int k = 0; k < span.terms; ++k) {
      const T* received = span.received[k] + first;
      const T weight = span.weights[k];
      prefetch_block(received);
#pragma GCC ivdep
      for (int i = 0; i < kUpdateBlock; ++i) mixed[i] = mixed[i] + weight * received[i];
    }
  }
  const T* received0 = Terms > 0 ? span.received[0] + first : nullptr;
  const T* received1 = Terms > 1 ? span.received[1] + first : nullptr;
  const T weight0 = Terms > 0 ? span.weights[0] : T(0);
  const T weight1 = Terms > 1 ? span.weights[1] : T(0);
  [[maybe_unused]] T factor = T(1);
  if constexpr (kMeasuresLayers<Step>)
    factor = static_cast<T>(span.factors[span.owner[first / kUpdateBlock]]);
#pragma GCC ivdep
  for (int i = 0; i < kUpdateBlock; ++i) {
    T p;
    if constexpr (Terms < 0) {
      p = mixed[i];
    } else if constexpr (Terms == 0) {
      p = self_weight * x[i];
    } else {
      p = self_weight * x[i] + weight0 * received0[i];
      if constexpr (Terms > 1) p = p + weight1 * received1[i];
    }
    T state[sizeof...(K) + 1] = {((Step::kReads >> K) & 1u ? states[K][i] : T(0))..., T(0)};
    if constexpr (kMeasuresLayers<Step>) {
      x_out[i] = step(p, scale * gradient[i], state, decay, factor);
    } else {
      x_out[i] = step(p, scale * gradient[i], state, decay);
    }
    ((void)((Step::kWrites >> K) & 1u ? states[K][i] = state[K] : T(0)), ...);
  }
}

template <int Terms, class Step, class T>
[[gnu::always_inline]] inline void update_blocks(const Step& given,
                                                 const UpdateSpan<T>& given_span) {
  // Copies, so that the compiler keeps coefficients and pointers in registers
  const Step step = given;
  const UpdateSpan<T> span = given_span;
  for (std::int64_t first = 0; first < span.n; first += kUpdateBlock) {
    update_block<Terms>(step, span, first, span.decay[first / kUpdateBlock] != 0,
                        std::make_index_sequence<Step::kStates>{});
  }
}

/// The whole span: c = self_weight·x + Σ weights[k]·received[k] in the order of k, then the step.
/// Elementwise only, so the bits do not depend on how a bucket is cut into spans.
template <class Step>
[[gnu::always_inline]] inline void update_span(const Step& step,
                                               const UpdateSpan<typename Step::Real>& span) {
  switch (span.terms) {
    case 0: update_blocks<0>(step, span); break;
    case 1: update_blocks<1>(step, span); break;
    case 2: update_blocks<2>(step, span); break;
    default: update_blocks<-1>(step, span); break;
  }
}

/// OptimizerRule::measure of one block, from lane `first` on: c in update_block's order.
template <class Step, class T, std::size_t... K>
[[gnu::always_inline]] inline void measure_block(const Step& step, const UpdateSpan<T>& span,
                                                 std::int64_t first, double* squares,
                                                 std::index_sequence<K...>) {
  const T* x = span.x + first;
  const T* gradient = span.gradient + first;
  [[maybe_unused]] const T* const states[sizeof...(K) + 1] = {span.states[K] + first..., nullptr};
  const bool decay = span.decay[first / kUpdateBlock] != 0;
  T mixed[kUpdateBlock];
  prefetch_block(x);
  prefetch_block(gradient);
  ((void)((Step::kMeasureReads >> K) & 1u ? prefetch_block(states[K]) : void()), ...);
#pragma GCC ivdep
  for (int i = 0; i < kUpdateBlock; ++i) mixed[i] = span.self_weight * x[i];
  for (int k = 0; k < span.terms; ++k) {
    const T* received = span.received[k] + first;
    const T weight = span.weights[k];
    prefetch_block(received);
#pragma GCC ivdep
    for (int i = 0; i < kUpdateBlock; ++i) mixed[i] = mixed[i] + weight * received[i];
  }
  double* parameters = squares + first;
  double* measured = squares + kLayerLanes + first;
#pragma GCC ivdep
  for (int i = 0; i < kUpdateBlock; ++i) {
    const T state[sizeof...(K) + 1] = {((Step::kMeasureReads >> K) & 1u ? states[K][i] : T(0))...,
                                       T(0)};
    const auto p = static_cast<double>(mixed[i]);
    const auto d = static_cast<double>(
        step.measured(mixed[i], span.gradient_scale * gradient[i], state, decay));
    parameters[i] = parameters[i] + p * p;
    measured[i] = measured[i] + d * d;
  }
}

template <class Step>
[[gnu::always_inline]] inline void measure_span(const Step& given,
                                                const UpdateSpan<typename Step::Real>& given_span,
                                                double* squares) {
  const Step step = given;
  const UpdateSpan<typename Step::Real> span = given_span;
  for (std::int64_t first = 0; first < span.n; first += kUpdateBlock) {
    measure_block(step, span, first, squares, std::make_index_sequence<Step::kStates>{});
  }
}

}  // namespace detail

/// Compiles the loop where it is used, with that file's flags (a plug-in's).
struct InlineLaunch {
  template <class Step>
  static void run(const Step& step, const UpdateSpan<typename Step::Real>& span) {
    detail::update_span(step, span);
  }
  template <class Step>
  static void measure(const Step& step, const UpdateSpan<typename Step::Real>& span,
                      double* squares) {
    detail::measure_span(step, span, squares);
  }
};

/// An OptimizerRule made from a rule; see above. Launch decides which compiled loop runs.
template <class Rule, class Launch = InlineLaunch>
class RuleKernel : public OptimizerRule {
 public:
  explicit RuleKernel(Rule rule) : rule_(std::move(rule)) {}
  /// The rule, for a GPU's backend, which makes its own kernels from it.
  const Rule& rule() const { return rule_; }

  std::vector<std::string> state_names() const override { return rule_.state_names(); }

  void update(const UpdateSpan<float>& span, double lr, std::int64_t step) const override {
    run(span, lr, step);
  }
  void update(const UpdateSpan<double>& span, double lr, std::int64_t step) const override {
    run(span, lr, step);
  }

  bool measures_layers() const override {
    bool result = false;
    rule_.template step<double>(0.0, 1, [&](const auto& step) {
      result = kMeasuresLayers<std::remove_cvref_t<decltype(step)>>;
    });
    return result;
  }
  void measure(const UpdateSpan<float>& span, double lr, std::int64_t step,
               double* squares) const override {
    run_measure(span, lr, step, squares);
  }
  void measure(const UpdateSpan<double>& span, double lr, std::int64_t step,
               double* squares) const override {
    run_measure(span, lr, step, squares);
  }
  double layer_factor(double parameter, double measured, bool weight, bool decays,
                      std::int64_t numbers) const override {
    double result = 1.0;
    rule_.template step<double>(0.0, 1, [&](const auto& step) {
      if constexpr (kMeasuresLayers<std::remove_cvref_t<decltype(step)>>)
        result = detail::layer_factor_of(step, parameter, measured, weight, decays, numbers);
    });
    return result;
  }

  std::int64_t matrix_workspace(std::int64_t rows, std::int64_t columns) const override {
    if constexpr (requires { rule_.matrix_workspace(rows, columns); })
      return rule_.matrix_workspace(rows, columns);
    return OptimizerRule::matrix_workspace(rows, columns);
  }
  void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                     const Tensor& workspace) const override {
    if constexpr (requires { rule_.finish_matrix(backend, args, layer, workspace); }) {
      rule_.finish_matrix(backend, args, layer, workspace);
    } else {
      OptimizerRule::finish_matrix(backend, args, layer, workspace);
    }
  }

  /// A rule whose update takes other steps has these three; issue() is told which OptimizerRule it
  /// is the rule of.
  std::int64_t state_elements(const LayerExtent& layer) const override {
    if constexpr (requires { rule_.state_elements(layer); }) return rule_.state_elements(layer);
    return OptimizerRule::state_elements(layer);
  }
  std::int64_t workspace(const std::vector<LayerExtent>& layers) const override {
    if constexpr (requires { rule_.workspace(layers); }) return rule_.workspace(layers);
    return OptimizerRule::workspace(layers);
  }
  void issue(Backend& backend, const UpdateArgs& args) const override {
    if constexpr (requires { rule_.issue(backend, *this, args); }) {
      rule_.issue(backend, *this, args);
    } else {
      OptimizerRule::issue(backend, args);
    }
  }

  /// The rule's period(), where it has one: one whose step's type depends on s does.
  std::int64_t phases() const override {
    if constexpr (requires { rule_.period(); }) return rule_.period();
    return 1;
  }

  void know_ranks(int ranks) override {
    if constexpr (requires { rule_.know_ranks(ranks); }) rule_.know_ranks(ranks);
  }
  bool corrects_noise() const override {
    if constexpr (requires { rule_.noise_correction; }) return rule_.noise_correction != 1.0;
    return false;
  }

  /// The model p + evaluated_weight() · state 0, where the rule has such a weight.
  EvaluatedModel evaluated() const override {
    if constexpr (requires { rule_.evaluated_weight(); })
      return {.state = 0, .weight = rule_.evaluated_weight()};
    return {};
  }
  bool needs_constant_rate() const override {
    if constexpr (requires { rule_.needs_constant_rate(); }) return rule_.needs_constant_rate();
    return false;
  }

  /// Bytes that an update moves. p is read and written, g is read, and each state as the step says;
  /// what is measured is read once more. What the rule's other operations move is added. It is the
  /// mean over the phases.
  int bytes_per_parameter(int element_size) const override {
    const std::int64_t period = phases();
    std::int64_t streams = 0;
    for (std::int64_t s = 1; s <= period; ++s) {
      rule_.template step<float>(0.0, s, [&](const auto& step) {
        using Step = std::remove_cvref_t<decltype(step)>;
        streams += 3 + __builtin_popcount(Step::kReads) + __builtin_popcount(Step::kWrites);
        if constexpr (kMeasuresLayers<Step>) streams += 2 + __builtin_popcount(Step::kMeasureReads);
        if constexpr (requires { Rule::kMoreStreams; }) streams += Rule::kMoreStreams;
      });
    }
    return static_cast<int>((streams * element_size + period / 2) / period);
  }

 private:
  template <class T>
  void run(const UpdateSpan<T>& span, double lr, std::int64_t step) const {
    rule_.template step<T>(lr, step, [&](const auto& made) { Launch::run(made, span); });
  }
  template <class T>
  void run_measure(const UpdateSpan<T>& span, double lr, std::int64_t step, double* squares) const {
    rule_.template step<T>(lr, step, [&](const auto& made) {
      if constexpr (kMeasuresLayers<std::remove_cvref_t<decltype(made)>>)
        Launch::measure(made, span, squares);
    });
  }

  Rule rule_;
};

}  // namespace starling
