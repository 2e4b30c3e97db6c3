#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "kernels/optimizer.h"
#include "tests/operations/rows.h"

// The fused update: mix, scale and clip, decay, rule.
namespace starling::tests {

namespace {

constexpr double kLr = 0.01, kBeta1 = 0.8, kBeta2 = 0.95, kRuleEps = 1e-3, kDecay = 0.1, kRuleMomentum = 0.9;
constexpr double kSelfWeight = 0.4, kGradientScale = 0.5, kClipFactor = 0.7;
constexpr Index kAccumulated = 3;
double neighbour_weight(Index k) { return 0.6 / static_cast<double>(1 + k); }

nlohmann::json settings_of(const std::string& rule) {
  if (rule == "sgd") return {{"momentum", kRuleMomentum}, {"nesterov", true}, {"weight_decay", kDecay}};
  nlohmann::json adam{{"betas", {kBeta1, kBeta2}}, {"eps", kRuleEps}, {"weight_decay", kDecay}};
  if (rule == "accum_adamw") adam["accum_iter"] = kAccumulated;
  return adam;
}

std::shared_ptr<OptimizerRule> make_rule(const std::string& name) {
  register_builtin_optimizers();
  ConfigSection section(settings_of(name), "operation table");
  std::shared_ptr<OptimizerRule> rule = optimizers().make(name, "optimizer.type", section);
  section.finish();
  return rule;
}

/// One element by the rule's definition: torch.optim's, and for accum_adamw decent-dp's.
double plain_step(const std::string& rule, Index s, double p, double g, double* state, bool decay) {
  if (rule == "sgd") {
    if (decay) g += kDecay * p;
    state[0] = kRuleMomentum * state[0] + g;
    return p - kLr * (g + kRuleMomentum * state[0]);
  }
  if (decay) p -= kLr * kDecay * p;
  const bool accumulates = rule == "accum_adamw";
  double m = state[0] + (1 - kBeta1) * g, v = state[1] + (1 - kBeta2) * g * g;
  Index group = s;
  if (accumulates) {
    group = (s + kAccumulated - 1) / kAccumulated;
    const double sum = (s % kAccumulated == 1 ? 0.0 : state[2]) + g / static_cast<double>(kAccumulated);
    state[2] = sum;
    if (s % kAccumulated == 0) {
      state[0] = kBeta1 * (state[0] + (1 - kBeta1) * sum);
      state[1] = kBeta2 * (state[1] + (1 - kBeta2) * sum * sum);
      state[2] = 0.0;
    }
  } else {
    m = state[0] = kBeta1 * state[0] + (1 - kBeta1) * g;
    v = state[1] = kBeta2 * state[1] + (1 - kBeta2) * g * g;
  }
  const auto power = static_cast<double>(group);
  const double corrected_m = m / (1 - std::pow(kBeta1, power)), corrected_v = v / (1 - std::pow(kBeta2, power));
  return p - kLr * corrected_m / (std::sqrt(corrected_v) + kRuleEps);
}

}  // namespace

Operation fused_update(const UpdateRow& how) {
  const std::shared_ptr<OptimizerRule> rule = make_rule(how.rule);
  const std::size_t states = rule->state_names().size(), terms = static_cast<std::size_t>(how.terms);
  // Inputs: x, gradient, control, decay, the states, what the neighbours sent. Outputs: x, the low-precision copy, the states.
  constexpr std::size_t kFirstState = 4;
  Operation op;
  op.name = fmt::format("update {} of {}, {} neighbour{}, step {}{}", how.rule, how.n, how.terms, how.terms == 1 ? "" : "s", how.step,
                        how.skip ? ", skipped" : "");
  op.inputs = {{how.n}, {how.n}, {2}, {how.n / 32}};
  op.inputs.resize(kFirstState + states + terms, Shape{how.n});
  op.input_roles.assign(op.inputs.size(), Role::kParameter);
  op.input_roles[2] = Role::kExact;
  op.input_roles[3] = Role::kByte;
  op.bounds = {0, 0, 0, 2};
  op.outputs.assign(2 + states, Shape{how.n});
  op.output_roles.assign(op.outputs.size(), Role::kParameter);
  op.output_roles[1] = Role::kActivation;
  // The low-precision copy, 2 bytes more where there is one, is left out.
  op.forward_bytes = static_cast<double>((rule->bytes_per_parameter(4) + 4 * how.terms) * how.n);
  op.fit = [=](std::vector<Numbers>& in) {
    in[2] = {kClipFactor, how.skip ? 1.0 : 0.0};
    if (states > 1) {
      for (double& v : in[kFirstState + 1]) v = std::abs(v);  // second moments
    }
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    UpdateArgs args{.x = in[0],
                    .x_out = out[0],
                    .gradient = in[1],
                    .self_weight = kSelfWeight,
                    .gradient_scale = kGradientScale,
                    .control = in[2],
                    .decay = in[3],
                    .lr = kLr,
                    .step = how.step};
    for (std::size_t i = 0; i < states; ++i) {
      if (how.own_states) b.copy(in[kFirstState + i], out[2 + i]);
      args.states.push_back(out[2 + i]);
    }
    for (std::size_t k = 0; k < terms; ++k) {
      args.received.push_back(in[kFirstState + states + k]);
      args.weights.push_back(neighbour_weight(static_cast<Index>(k)));
    }
    const bool low = is_low_precision(out[1].dtype());
    if (low) args.low = out[1];
    b.update({*rule, args});
    if (!low && how.own_states) b.copy(out[0], out[1]);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      double p = terms > 0 ? kSelfWeight * in[0][i] : in[0][i];
      for (std::size_t k = 0; k < terms; ++k) p += neighbour_weight(static_cast<Index>(k)) * in[kFirstState + states + k][i];
      double state[4] = {};
      for (std::size_t k = 0; k < states; ++k) state[k] = in[kFirstState + k][i];
      if (!how.skip) p = plain_step(how.rule, how.step, p, kGradientScale * kClipFactor * in[1][i], state, in[3][i / 32] != 0.0);
      out[0][i] = out[1][i] = p;
      for (std::size_t k = 0; k < states; ++k) out[2 + k][i] = state[k];
    }
  };
  return op;
}

}  // namespace starling::tests
