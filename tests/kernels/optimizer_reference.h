#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/config.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/linear.h"

namespace starling::test {

/// A plain re-implementation of the update's definition, in double, element by element.
struct Reference {
  std::string type;
  double momentum = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool nesterov = false;
  std::int64_t accum_iter = 1;
  double noise_ranks = 1;
  int states = 0, made = 0;  ///< of a rule of sums, type "linear"
  double alpha = 0.99, lr_decay = 0, initial = 0, momentum_decay = 4e-3;
  bool centered = false, decoupled = false;
  std::int64_t warmup_steps = 0;

  /// Numbers without meaning, all of them different.
  static LinearTerms coefficients(double lr) {
    return {
        .x = {.p = 0.9, .s = {0.3, -0.2 * lr}, .g = -lr, .made = {0.1, -0.5}},
        .state = {{.p = 0.2, .s = {0.5, 0.1}, .g = 0.4}, {.p = -0.1, .s = {0.3, 0.6}, .g = 0.2}},
        .decay_p = 0.05,
        .decay_s = {0.02, 0.01}};
  }
  struct State {
    double u = 0, m = 0, v = 0, a = 0;
  };

  double linear(double p, double g, State& state, bool decay, double lr) const {
    const LinearTerms c = coefficients(lr);
    double* const all[2] = {&state.u, &state.m};
    const double old[2] = {states > 0 ? state.u : 0, states > 1 ? state.m : 0};
    if (decay) g += c.decay_p * p + c.decay_s[0] * old[0] + c.decay_s[1] * old[1];
    double result = c.x.p * p + c.x.s[0] * old[0] + c.x.s[1] * old[1] + c.x.g * g;
    for (int k = 0; k < made; ++k) {
      const auto& of = c.state[k];
      *all[k] = of.p * p + of.s[0] * old[0] + of.s[1] * old[1] + of.g * g;
      result += c.x.made[k] * *all[k];
    }
    return result;
  }

  double rmsprop(double p, double g, State& state, double lr) const {
    state.v = alpha * state.v + (1 - alpha) * g * g;
    state.m = alpha * state.m + (1 - alpha) * g;
    const double square = centered ? std::max(state.v - state.m * state.m, 0.0) : state.v;
    state.u = momentum * state.u + g / (std::sqrt(square) + eps);
    return p - lr * state.u;
  }

  double adagrad(double p, double g, State& state, double lr, std::int64_t s) const {
    state.v += g * g;
    return p - lr / (1 + static_cast<double>(s - 1) * lr_decay) * g /
                   (std::sqrt(initial + state.v) + eps);
  }

  double nadam(double p, double g, State& state, double lr, std::int64_t s) const {
    const auto mu = [&](std::int64_t i) {
      return beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(i) * momentum_decay));
    };
    double product = 1;
    for (std::int64_t i = 1; i <= s; ++i) product *= mu(i);
    state.m = beta1 * state.m + (1 - beta1) * g;
    state.v = beta2 * state.v + (1 - beta2) * g * g;
    const double m =
        mu(s + 1) * state.m / (1 - product * mu(s + 1)) + (1 - mu(s)) * g / (1 - product);
    return p - lr * m / (std::sqrt(state.v / (1 - std::pow(beta2, s))) + eps);
  }

  double lion(double p, double g, State& state, double lr) const {
    const double c = beta1 * state.m + (1 - beta1) * g;
    state.m = beta2 * state.m + (1 - beta2) * g;
    return c == 0 ? p : p - std::copysign(lr, c);
  }

  /// Upstream's way, with z itself (y's difference from which is state m) and a sum of weights that
  /// is added up step by step.
  double schedule_free(double y, double g, State& state, double wd, double lr,
                       std::int64_t s) const {
    const auto rate = [&](std::int64_t k) {
      return lr * std::min(1.0, static_cast<double>(k) / static_cast<double>(warmup_steps));
    };
    double weights = 0;
    for (std::int64_t k = 1; k <= s; ++k) weights += rate(k) * rate(k);
    const double c = rate(s) * rate(s) / weights, z = y + state.m;
    state.v = beta2 * state.v + (1 - beta2) * g * g;
    const double n = g / (std::sqrt(state.v / (1 - std::pow(beta2, s))) + eps) + wd * y;
    const double next = y + c * (z - y) + n * rate(s) * (beta1 * (1 - c) - 1);
    state.m = z - rate(s) * n - next;
    return next;
  }

  double step(double p, double g, State& state, bool decay, double lr, std::int64_t s) const {
    if (type == "linear") return linear(p, g, state, decay, lr);
    const double wd = decay ? weight_decay : 0;
    if (type == "schedule_free_adamw") return schedule_free(p, g, state, wd, lr, s);
    if (type == "adamw" || type == "accum_adamw" || type == "lion" || decoupled) {
      p *= 1 - lr * wd;
    } else {
      g += wd * p;
    }
    if (type == "sgd") {
      state.u = s == 1 ? g : momentum * state.u + g;
      return p - lr * (nesterov ? g + momentum * state.u : state.u);
    }
    if (type == "rmsprop") return rmsprop(p, g, state, lr);
    if (type == "adagrad") return adagrad(p, g, state, lr, s);
    if (type == "nadam") return nadam(p, g, state, lr, s);
    if (type == "lion") return lion(p, g, state, lr);
    if (type == "adam" || type == "adamw") {
      state.m = beta1 * state.m + (1 - beta1) * g;
      state.v = beta2 * state.v + (1 - beta2) * g * g;
      const double m = state.m / (1 - std::pow(beta1, s)), v = state.v / (1 - std::pow(beta2, s)),
                   c = (1 - beta1) / (1 + beta1);
      const double noise = std::max(v - m * m, 0.0) / (1 - c);
      return p -
             lr * m /
                 (std::sqrt(std::max(v - (1 - 1 / noise_ranks) * noise, v / noise_ranks)) + eps);
    }
    const auto k = accum_iter;
    state.a += g / static_cast<double>(k);
    const double m = state.m + (1 - beta1) * g;
    const double v = state.v + (1 - beta2) * g * g;
    const auto updates = (s + k - 1) / k;
    const auto q = static_cast<double>(updates);
    p -= lr / (1 - std::pow(beta1, q)) * m /
         (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, q)) + eps);
    if (s % k == 0) {
      state.m = beta1 * (state.m + (1 - beta1) * state.a);
      state.v = beta2 * (state.v + (1 - beta2) * state.a * state.a);
      state.a = 0;
    }
    return p;
  }

  /// The config section of the same rule.
  nlohmann::json config() const {
    nlohmann::json result = {{"weight_decay", weight_decay}};
    if (type == "sgd") {
      result["momentum"] = momentum;
      result["nesterov"] = nesterov;
    } else if (type == "rmsprop") {
      result.update({{"alpha", alpha}, {"momentum", momentum}, {"centered", centered}});
    } else if (type == "adagrad") {
      result.update({{"lr_decay", lr_decay}, {"initial_accumulator_value", initial}});
    } else {
      result["betas"] = {beta1, beta2};
    }
    if (type == "nadam")
      result.update({{"momentum_decay", momentum_decay}, {"decoupled_weight_decay", decoupled}});
    if (type == "schedule_free_adamw") result["warmup_steps"] = warmup_steps;
    if (type != "sgd" && type != "lion") result["eps"] = eps;
    if (noise_ranks != 1) result["noise_correction"] = noise_ranks;
    if (type.starts_with("accum")) result["accum_iter"] = accum_iter;
    return result;
  }
};

/// One of each kind of rule, with decay.
inline std::vector<Reference> reference_rules() {
  return {
      {.type = "sgd", .weight_decay = 0.1},
      {.type = "sgd", .momentum = 0.9, .weight_decay = 0.1},
      {.type = "sgd", .momentum = 0.8, .weight_decay = 0.05, .nesterov = true},
      {.type = "adam", .weight_decay = 0.1},
      {.type = "adamw", .beta1 = 0.85, .beta2 = 0.99, .weight_decay = 0.1},
      {.type = "accum_adam", .weight_decay = 0.1, .accum_iter = 2},
      {.type = "accum_adamw", .weight_decay = 0.1, .accum_iter = 4},
      {.type = "accum_adamw", .weight_decay = 0.1, .accum_iter = 1},
      {.type = "adam", .weight_decay = 0.1, .noise_ranks = 8},
      {.type = "adamw", .beta1 = 0.7, .weight_decay = 0.1, .noise_ranks = 2.5},
      {.type = "rmsprop", .weight_decay = 0.1},
      {.type = "rmsprop", .momentum = 0.9, .weight_decay = 0.1, .alpha = 0.9},
      {.type = "rmsprop", .eps = 1e-3, .weight_decay = 0.1, .centered = true},
      {.type = "rmsprop",
       .momentum = 0.8,
       .eps = 1e-3,
       .weight_decay = 0.1,
       .alpha = 0.8,
       .centered = true},
      {.type = "adagrad", .weight_decay = 0.1},
      {.type = "adagrad", .eps = 1e-3, .weight_decay = 0.1, .lr_decay = 0.2, .initial = 0.5},
      {.type = "nadam", .weight_decay = 0.1},
      {.type = "nadam",
       .beta1 = 0.7,
       .weight_decay = 0.1,
       .momentum_decay = 0.3,
       .decoupled = true},
      {.type = "lion", .beta2 = 0.99, .weight_decay = 0.1},
      {.type = "schedule_free_adamw", .weight_decay = 0.1},
      {.type = "schedule_free_adamw", .beta1 = 0.7, .weight_decay = 0.1, .warmup_steps = 6},
      {.type = "linear", .states = 0, .made = 0},
      {.type = "linear", .states = 1, .made = 0},
      {.type = "linear", .states = 1, .made = 1},
      {.type = "linear", .states = 2, .made = 0},
      {.type = "linear", .states = 2, .made = 1},
      {.type = "linear", .states = 2, .made = 2},
  };
}

inline std::unique_ptr<OptimizerRule> make_rule(const std::string& type,
                                                const nlohmann::json& config) {
  register_builtin_optimizers();
  ConfigSection section(config, "test.json");
  auto rule = optimizers().make(type, "optimizer.type", section);
  section.finish();
  return rule;
}
inline std::unique_ptr<OptimizerRule> make_rule(const Reference& reference) {
  if (reference.type == "linear")
    return make_linear_rule(reference.states, reference.made, &Reference::coefficients);
  return make_rule(reference.type, reference.config());
}

/// The memory of one bucket, in plain vectors.
template <class T>
struct Bucket {
  std::vector<T> x, gradient;
  std::vector<std::vector<T>> states, received;
  std::vector<T> weights;
  std::vector<std::uint8_t> decay;
  T self_weight = 1, gradient_scale = 1;

  Bucket(std::size_t n, std::size_t state_count)
      : x(n), gradient(n), states(state_count, std::vector<T>(n)), decay(n / 32) {}

  /// The span of `count` elements from `first` on; `pointers` keeps the list of neighbours alive.
  UpdateSpan<T> span(std::size_t first, std::size_t count, std::vector<const T*>& pointers) {
    pointers.clear();
    for (const auto& buffer : received) pointers.push_back(buffer.data() + first);
    UpdateSpan<T> result;
    result.x = result.x_out = x.data() + first;
    result.gradient = gradient.data() + first;
    for (std::size_t k = 0; k < states.size(); ++k) result.states[k] = states[k].data() + first;
    result.received = pointers.data();
    result.weights = weights.data();
    result.terms = static_cast<int>(received.size());
    result.self_weight = self_weight;
    result.gradient_scale = gradient_scale;
    result.decay = decay.data() + first / 32;
    result.n = static_cast<std::int64_t>(count);
    return result;
  }

  void update(const OptimizerRule& rule, double lr, std::int64_t step) {
    std::vector<const T*> pointers;
    rule.step<T>(lr, step).update(span(0, x.size(), pointers));
  }
};

/// Normal numbers from a seed, the same in float (rounded) and double.
template <class T>
std::vector<T> normal_numbers(std::size_t n, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> result(n);
  for (T& value : result) value = static_cast<T>(normal(generator));
  return result;
}

/// A bucket with contents in every buffer.
template <class T>
Bucket<T> filled_bucket(std::size_t n, std::size_t states, int terms) {
  Bucket<T> bucket(n, states);
  bucket.x = normal_numbers<T>(n, 1);
  bucket.gradient = normal_numbers<T>(n, 2);
  for (std::size_t k = 0; k < states; ++k) {
    bucket.states[k] = normal_numbers<T>(n, 3 + static_cast<unsigned>(k));
    for (T& value : bucket.states[k]) value = std::abs(value);
  }
  for (int k = 0; k < terms; ++k) {
    bucket.received.push_back(normal_numbers<T>(n, 20 + static_cast<unsigned>(k)));
    bucket.weights.push_back(static_cast<T>(1.0 / (3.0 + k)));
  }
  bucket.self_weight = static_cast<T>(0.37);
  bucket.gradient_scale = static_cast<T>(0.77);
  for (std::size_t i = 0; i < bucket.decay.size(); ++i) bucket.decay[i] = i % 3 != 0;
  return bucket;
}

/// Takes a golden file's steps on its two tensors, of which the first decays, and calls
/// check(bucket, k, row, column, place) for every number after the k-th step whose numbers the file
/// has. How many such steps there were.
template <class Rate, class Check>
std::size_t follow_golden(const nlohmann::json& document, const OptimizerRule& rule,
                          const Rate& rate, const Check& check) {
  const std::size_t size = document["x"][0].size();
  const auto each = [&](const auto& visit) {
    for (std::size_t i = 0; i < 2 * size; ++i) visit(i / size, i % size, i / size * 32 + i % size);
  };
  Bucket<double> bucket(64, rule.facts().states.size());
  bucket.decay = {1, 0};
  each([&](std::size_t row, std::size_t column, std::size_t place) {
    bucket.x[place] = document["x"][row][column];
  });
  std::size_t kept = 0;
  for (std::size_t step = 0; step < document["gradients"].size(); ++step) {
    const nlohmann::json& gradient = document["gradients"][step];
    each([&](std::size_t row, std::size_t column, std::size_t place) {
      bucket.gradient[place] = gradient[row][column];
    });
    bucket.update(rule, rate(step), static_cast<std::int64_t>(step) + 1);
    if (kept == document["kept_steps"].size() || document["kept_steps"][kept] != step + 1) continue;
    each([&](std::size_t row, std::size_t column, std::size_t place) {
      check(bucket, kept, row, column, place);
    });
    ++kept;
  }
  return kept;
}

}  // namespace starling::test
