#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "core/operations/updates.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/rows.h"

// The fused update: mix, scale and clip, decay, rule.
namespace starling::tests {

namespace {

constexpr double kLr = 0.01, kSelfWeight = 0.4, kGradientScale = 0.5, kClipFactor = 0.7;
double neighbour_weight(Index k) { return 0.6 / static_cast<double>(1 + k); }

test::Reference plain_rule(const std::string& type) {
  if (type == "sgd") return {.type = type, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
  return {.type = type,
          .beta1 = 0.8,
          .beta2 = 0.95,
          .eps = 1e-3,
          .weight_decay = 0.1,
          .accum_iter = type == "accum_adamw" ? 3 : 1};
}

}  // namespace

Operation fused_update(const UpdateRow& how) {
  const test::Reference plain = plain_rule(how.rule);
  const std::shared_ptr<OptimizerRule> rule = test::make_rule(plain);
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
      for (std::size_t k = 0; k < terms; ++k)
        p += neighbour_weight(static_cast<Index>(k)) * in[kFirstState + states + k][i];
      test::Reference::State state;
      double* const own[] = {how.rule == "sgd" ? &state.u : &state.m, &state.v, &state.a};
      for (std::size_t k = 0; k < states; ++k) *own[k] = in[kFirstState + k][i];
      // a group's first step does not read it
      if (!how.skip && how.step % plain.accum_iter == 1) state.a = 0;
      if (!how.skip)
        p = plain.step(p, kGradientScale * kClipFactor * in[1][i], state, in[3][i / 32] != 0.0, kLr,
                       how.step);
      out[0][i] = out[1][i] = p;
      for (std::size_t k = 0; k < states; ++k) out[2 + k][i] = *own[k];
    }
  };
  return op;
}

}  // namespace starling::tests
