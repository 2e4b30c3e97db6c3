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

/// The coefficients of a rule of sums, type "linear": numbers without meaning, all of them
/// different.
inline LinearTerms linear_terms(double lr) {
  return {.x = {.p = 0.9, .s = {0.3, -0.2 * lr}, .g = -lr, .made = {0.1, -0.5}},
          .state = {{.p = 0.2, .s = {0.5, 0.1}, .g = 0.4}, {.p = -0.1, .s = {0.3, 0.6}, .g = 0.2}},
          .decay_p = 0.05,
          .decay_s = {0.02, 0.01}};
}

/// A rule by its config; "linear" has `states`, and `made` of them are written.
inline std::unique_ptr<OptimizerRule> make_rule(nlohmann::json config) {
  const std::string type = config["type"];
  if (type == "linear") return make_linear_rule(config["states"], config["made"], &linear_terms);
  register_builtin_optimizers();
  config.erase("type");
  ConfigSection section(config, "test.json");
  auto rule = optimizers().make(type, "optimizer.type", section);
  section.finish();
  return rule;
}
inline std::unique_ptr<OptimizerRule> make_rule(const std::string& type, nlohmann::json config) {
  config["type"] = type;
  return make_rule(std::move(config));
}

/// One of each kind of rule, with decay.
inline const std::vector<nlohmann::json>& every_rule() {
  static const auto rules = nlohmann::json::parse(R"([
    {"type": "sgd", "weight_decay": 0.1},
    {"type": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"type": "sgd", "momentum": 0.8, "nesterov": true, "weight_decay": 0.05},
    {"type": "adam", "weight_decay": 0.1},
    {"type": "adamw", "betas": [0.85, 0.99], "weight_decay": 0.1},
    {"type": "accum_adam", "weight_decay": 0.1, "accum_iter": 2},
    {"type": "accum_adamw", "weight_decay": 0.1, "accum_iter": 4},
    {"type": "accum_adamw", "weight_decay": 0.1, "accum_iter": 1},
    {"type": "adam", "weight_decay": 0.1, "noise_correction": 8},
    {"type": "adamw", "betas": [0.7, 0.999], "weight_decay": 0.1, "noise_correction": 2.5},
    {"type": "rmsprop", "weight_decay": 0.1},
    {"type": "rmsprop", "momentum": 0.9, "alpha": 0.9, "weight_decay": 0.1},
    {"type": "rmsprop", "eps": 1e-3, "centered": true, "weight_decay": 0.1},
    {"type": "rmsprop", "momentum": 0.8, "eps": 1e-3, "alpha": 0.8, "centered": true, "weight_decay": 0.1},
    {"type": "adagrad", "weight_decay": 0.1},
    {"type": "adagrad", "eps": 1e-3, "lr_decay": 0.2, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
    {"type": "nadam", "weight_decay": 0.1},
    {"type": "nadam", "betas": [0.7, 0.999], "momentum_decay": 0.3, "decoupled_weight_decay": true, "weight_decay": 0.1},
    {"type": "lion", "betas": [0.9, 0.99], "weight_decay": 0.1},
    {"type": "schedule_free_adamw", "weight_decay": 0.1},
    {"type": "schedule_free_adamw", "betas": [0.7, 0.999], "warmup_steps": 6, "weight_decay": 0.1},
    {"type": "linear", "states": 0, "made": 0}, {"type": "linear", "states": 1, "made": 0},
    {"type": "linear", "states": 1, "made": 1}, {"type": "linear", "states": 2, "made": 0},
    {"type": "linear", "states": 2, "made": 1}, {"type": "linear", "states": 2, "made": 2}])")
                                .get<std::vector<nlohmann::json>>();
  return rules;
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
template <class T, class Rate, class Check>
std::size_t follow_golden(const nlohmann::json& document, const OptimizerRule& rule,
                          const Rate& rate, const Check& check) {
  const std::size_t size = document["x"][0].size();
  const auto each = [&](const auto& visit) {
    for (std::size_t i = 0; i < 2 * size; ++i) visit(i / size, i % size, i / size * 32 + i % size);
  };
  Bucket<T> bucket(64, rule.facts().states.size());
  bucket.decay = {1, 0};
  each([&](std::size_t row, std::size_t column, std::size_t place) {
    bucket.x[place] = document["x"][row][column].get<T>();
  });
  std::size_t kept = 0;
  for (std::size_t step = 0; step < document["gradients"].size(); ++step) {
    const nlohmann::json& gradient = document["gradients"][step];
    each([&](std::size_t row, std::size_t column, std::size_t place) {
      bucket.gradient[place] = gradient[row][column].get<T>();
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
