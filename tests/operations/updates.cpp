#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>

#include "core/operations/updates.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/rows.h"
#include "tests/support/plain_rule.h"

// The fused update: mix, scale and clip, decay, rule.
namespace starling::tests {

namespace {

constexpr double kLr = 0.01, kSelfWeight = 0.4, kGradientScale = 0.5, kClipFactor = 0.7;
double neighbour_weight(Index k) { return 0.6 / static_cast<double>(1 + k); }

nlohmann::json config_of(const std::string& rule) {
  if (rule == "sgd")
    return {{"type", rule}, {"momentum", 0.9}, {"nesterov", true}, {"weight_decay", 0.1}};
  nlohmann::json config{{"type", rule}, {"betas", {0.8, 0.95}}, {"eps", 1e-3}};
  if (rule == "accum_adamw") config["accum_iter"] = 3;
  return config;
}

}  // namespace

Operation fused_update(const UpdateRow& how) {
  const test::PlainRule plain(config_of(how.rule));
  const std::shared_ptr<OptimizerRule> rule = test::make_rule(config_of(how.rule));
  const std::size_t states = rule->facts().states.size(),
                    terms = static_cast<std::size_t>(how.terms);
  // Inputs: x, gradient, control, decay, the states, what the neighbours sent. Outputs: x, the
  // low-precision copy, the states.
  constexpr std::size_t kFirstState = 4;
  Operation op;
  op.name = fmt::format("update {} of {}, {} neighbour{}, step {}{}", how.rule, how.n, how.terms,
                        how.terms == 1 ? "" : "s", how.step, how.skip ? ", skipped" : "");
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
  op.forward_bytes =
      static_cast<double>((rule->bytes_per_parameter(4) + 4 * how.terms) * how.n * how.updates);
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
    for (; args.step < how.step + how.updates; ++args.step) b.update({*rule, args});
    if (!low && how.own_states) b.copy(out[0], out[1]);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (std::size_t i = 0; i < in[0].size(); ++i) {
      double p = terms > 0 ? kSelfWeight * in[0][i] : in[0][i];
      for (std::size_t k = 0; k < terms; ++k)
        p += neighbour_weight(static_cast<Index>(k)) * in[kFirstState + states + k][i];
      std::array<double, 3> now{};
      for (std::size_t k = 0; k < states; ++k) now[k] = in[kFirstState + k][i];
      if (!how.skip) {
        // a run's first step does not read SGD's buffer, nor a group's what is accumulated
        if (how.step == 1 && how.rule == "sgd") now[0] = 0;
        if (how.step % plain.accum_iter == 1) now[2] = 0;
        p = plain.step(p, kGradientScale * kClipFactor * in[1][i], {&now[0], &now[1], &now[2]},
                       in[3][i / 32] != 0.0, kLr, how.step);
      }
      out[0][i] = out[1][i] = p;
      for (std::size_t k = 0; k < states; ++k) out[2 + k][i] = now[k];
    }
  };
  return op;
}

}  // namespace starling::tests
