#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/host_device.h"
#include "core/operations/updates.h"
#include "kernels/math/rules.h"
#include "kernels/optimizer.h"

// Makes an OptimizerRule from a rule (see kernels/math/rules.h): mixing, scaling, decay and the
// rule in one pass over memory.

namespace starling {

/// Whether a step needs layer-wise norms (LarsStep, LambStep). It defines which value of an element
/// is measured, and a layer's factor as a function of the two norms, which is passed to operator():
///     static constexpr bool kMeasures = true;
///     static constexpr unsigned kMeasureReads                 bit k: measured() reads state k
///     T measured(T p, T g, const T* state, bool decay) const
///     double layer_factor(double parameter, double measured, bool weight, bool decays) const
///                                                             from the sums of squares; may take
///                                                             their number as another parameter,
///                                                             `std::int64_t numbers`
///     T operator()(T p, T g, T* state, bool decay, T factor) const
template <class Step>
inline constexpr bool kMeasuresLayers = requires {
  Step::kMeasures;
};

namespace detail {

/// A layer's factor; `numbers`: the number of squares.
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

/// The mix as kernels compute it: self_weight · x + the terms starting at `skip`.
struct Mixture {
  const Tensor* x = nullptr;
  double self_weight = 1.0;
  std::size_t skip = 0;
};
inline Mixture mixture_of(const UpdateArgs& args) {
  if (args.received.empty()) return {&args.x, 1.0, 0};
  // A group's sum includes this rank: x need not be read.
  if (args.self_weight == 0.0) return {&args.received[0], args.weights[0], 1};
  return {&args.x, args.self_weight, 0};
}

/// Prefetch distance in bytes. Hardware prefetchers stop at page boundaries, and do not handle
/// eight streams well.
inline constexpr std::int64_t kPrefetchBytes = 2048;

template <class T>
[[gnu::always_inline]] inline void prefetch_block(const T* block) {
  const char* bytes = reinterpret_cast<const char*>(block) + kPrefetchBytes;
  for (std::size_t line = 0; line < kUpdateBlock * sizeof(T); line += 64)
    __builtin_prefetch(bytes + line);
}

/// Whether there are loops and kernels for 0, 1 and 2 terms: for fp32, which models train in. fp64
/// always takes the general one, which gives the same bits.
template <class T>
inline constexpr bool kSpecialised = sizeof(T) == sizeof(float);

/// Updates one block. Terms is the number of neighbours (0 or more), or -1 if known at run time
/// only. x_out may be x.
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

/// Updates a span: c = self_weight·x + Σ weights[k]·received[k] in the order of k, then the step.
/// The bits do not depend on how a bucket is divided into spans.
template <class Step>
[[gnu::always_inline]] inline void update_span(const Step& step,
                                               const UpdateSpan<typename Step::Real>& span) {
  if constexpr (kSpecialised<typename Step::Real>) {
    switch (span.terms) {
      case 0: return update_blocks<0>(step, span);
      case 1: return update_blocks<1>(step, span);
      case 2: return update_blocks<2>(step, span);
      default: break;
    }
  }
  update_blocks<-1>(step, span);
}

/// CpuStep::measure of one block, starting at lane `first`, with c as in update_block().
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

/// Compiles the loop where it is used, with that file's flags: for plug-ins.
struct InlineLaunch {
  static constexpr bool kBuiltIn = false;
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

/// An OptimizerRule made from a rule. Launch selects the compiled loop. In addition to the members
/// in kernels/math/rules.h a rule may have know_ranks, state_elements, workspace and finish_matrix,
/// as in OptimizerRule; issue(backend, self, args), where self is the OptimizerRule; and
/// kMoreStreams, the number of tensors that its other operations read and write.
template <class Rule, class Launch = InlineLaunch>
class RuleKernel : public OptimizerRule {
 public:
  explicit RuleKernel(Rule rule) : OptimizerRule(all_facts(rule)), rule_(std::move(rule)) {}
  /// The rule, for GPU kernels.
  const Rule& rule() const { return rule_; }

  /// Reads and writes p, reads g, accesses states according to the step, and reads measured values
  /// a second time; plus kMoreStreams. The mean over the phases.
  int bytes_per_parameter(int element_size) const override {
    std::int64_t streams = 0;
    for (std::int64_t s = 1; s <= facts_.phases; ++s) {
      rules::with_step(rule_.template step<float>(0.0, s), [&](const auto& step) {
        using Step = std::remove_cvref_t<decltype(step)>;
        streams += 3 + __builtin_popcount(Step::kReads) + __builtin_popcount(Step::kWrites);
        if constexpr (kMeasuresLayers<Step>) streams += 2 + __builtin_popcount(Step::kMeasureReads);
      });
      if constexpr (requires { Rule::kMoreStreams; }) streams += Rule::kMoreStreams;
    }
    return static_cast<int>((streams * element_size + facts_.phases / 2) / facts_.phases);
  }
  void know_ranks(int ranks) override {
    if constexpr (requires { rule_.know_ranks(ranks); }) {
      rule_.know_ranks(ranks);
      facts_ = all_facts(rule_);
    }
  }
  std::int64_t state_elements(const LayerExtent& layer) const override {
    if constexpr (requires { rule_.state_elements(layer); }) return rule_.state_elements(layer);
    return 0;
  }
  std::int64_t workspace(const std::vector<LayerExtent>& layers) const override {
    if constexpr (requires { rule_.workspace(layers); }) return rule_.workspace(layers);
    return 0;
  }
  void issue(Backend& backend, const UpdateArgs& args) const override {
    if constexpr (requires { rule_.issue(backend, *this, args); }) {
      rule_.issue(backend, *this, args);
    } else {
      OptimizerRule::issue(backend, args);
    }
  }
  void finish_matrix(Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
                     const Tensor& workspace) const override {
    if constexpr (kFinishesMatrices) {
      rule_.finish_matrix(backend, args, layer, workspace);
    } else {
      OptimizerRule::finish_matrix(backend, args, layer, workspace);
    }
  }

 private:
  static constexpr bool kFinishesMatrices =
      requires(const Rule& rule, Backend& backend, const UpdateArgs& args, const LayerExtent& layer,
               const Tensor& workspace) {
    rule.finish_matrix(backend, args, layer, workspace);
  };
  template <class Step>
  static constexpr bool measures(const Step*) {
    return kMeasuresLayers<Step>;
  }
  template <class... Steps>
  static constexpr bool measures(const std::variant<Steps...>*) {
    return (kMeasuresLayers<Steps> || ...);
  }
  static RuleFacts all_facts(const Rule& rule) {
    RuleFacts facts = rule.facts();
    facts.measures_layers = measures(static_cast<const rules::StepOf<Rule, float>*>(nullptr));
    facts.finishes_matrices = kFinishesMatrices;
    facts.built_in = Launch::kBuiltIn;
    return facts;
  }

  CpuStep<float> step_fp32(double lr, std::int64_t s) const override { return made<float>(lr, s); }
  CpuStep<double> step_fp64(double lr, std::int64_t s) const override {
    return made<double>(lr, s);
  }
  template <class T>
  CpuStep<T> made(double lr, std::int64_t s) const {
    return rules::with_step(rule_.template step<T>(lr, s), [](const auto& step) {
      CpuStep<T> result;
      result.update = [step](const UpdateSpan<T>& span) { Launch::run(step, span); };
      if constexpr (kMeasuresLayers<std::remove_cvref_t<decltype(step)>>) {
        result.measure = [step](const UpdateSpan<T>& span, double* squares) {
          Launch::measure(step, span, squares);
        };
        result.layer_factor = [step](double parameter, double measured, bool weight, bool decays,
                                     std::int64_t numbers) {
          return detail::layer_factor_of(step, parameter, measured, weight, decays, numbers);
        };
      }
      return result;
    });
  }

  Rule rule_;
};

/// Adds a rule to optimizers(), with its name, keys, default rate and summary.
template <class Rule, class Launch = InlineLaunch>
void add_optimizer() {
  double rate = kUsualRate;
  if constexpr (requires { Rule::kRate; }) rate = Rule::kRate;
  const auto make = [](ConfigSection& config) -> std::unique_ptr<OptimizerRule> {
    Rule rule;
    rule.read(config);
    return std::make_unique<RuleKernel<Rule, Launch>>(std::move(rule));
  };
  optimizers().add(Rule::kName, make, Rule::kSummary, rate);
}

}  // namespace starling
