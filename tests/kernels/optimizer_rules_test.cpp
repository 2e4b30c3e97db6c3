#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/optimizer.h"
#include "kernels/optimizers/nadam.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/errors.h"
#include "tests/support/plain_rule.h"

namespace starling::test {
namespace {

constexpr std::size_t kRuled = 96;

/// The definition of a rule of sums.
double linear_step(const nlohmann::json& config, double p, double g, std::array<double, 3>& state,
                   bool decays, double lr) {
  const LinearTerms c = linear_terms(lr);
  const std::size_t states = config["states"], made = config["made"];
  const double old[2] = {states > 0 ? state[0] : 0, states > 1 ? state[1] : 0};
  if (decays) g += c.decay_p * p + c.decay_s[0] * old[0] + c.decay_s[1] * old[1];
  double result = c.x.p * p + c.x.s[0] * old[0] + c.x.s[1] * old[1] + c.x.g * g;
  for (std::size_t k = 0; k < made; ++k) {
    const auto& of = c.state[k];
    state[k] = of.p * p + of.s[0] * old[0] + of.s[1] * old[1] + of.g * g;
    result += c.x.made[k] * state[k];
  }
  return result;
}

/// Runs 9 steps of a rule with mixing by `terms` neighbours, and compares parameters and states
/// with those of the same rule where nothing is mixed, scaled or skipped: all that is done here
/// instead. Of a rule that has a plain definition, with that as well.
template <class T>
void compare_with_definition(const nlohmann::json& config, int terms, double tolerance) {
  const auto rule = make_rule(config);
  const std::size_t state_count = rule->facts().states.size();
  Bucket<T> bucket(kRuled, state_count);
  bucket.x = normal_numbers<T>(kRuled, 1);
  bucket.decay = {1, 0, 1};
  bucket.gradient_scale = T(0.5);
  bucket.self_weight = terms == 0 ? T(1) : terms == 5 ? T(0) : T(0.5);  // 0: a whole group's sum
  for (int k = 0; k < terms; ++k)
    bucket.weights.push_back(static_cast<T>(0.5 / terms + 0.0625 * k));
  bucket.received.resize(static_cast<std::size_t>(terms));
  Bucket<double> alone(kRuled, state_count);
  alone.x.assign(bucket.x.begin(), bucket.x.end());
  alone.decay = bucket.decay;
  std::vector<double> plain = alone.x;
  std::vector<std::array<double, 3>> states(kRuled);
  const std::string type = config["type"];
  for (std::int64_t s = 1; s <= 9; ++s) {
    const double lr = 0.01 * static_cast<double>(10 - s);
    bucket.gradient = normal_numbers<T>(kRuled, 100 + static_cast<unsigned>(s));
    for (int k = 0; k < terms; ++k)
      bucket.received[static_cast<std::size_t>(k)] =
          normal_numbers<T>(kRuled, static_cast<unsigned>(1000 + 10 * s + k));
    bucket.update(*rule, lr, s);
    for (std::size_t i = 0; i < kRuled; ++i) {
      for (std::vector<double>* x : {&alone.x, &plain}) {
        if (terms > 0) (*x)[i] *= static_cast<double>(bucket.self_weight);
        for (std::size_t k = 0; k < bucket.received.size(); ++k)
          (*x)[i] +=
              static_cast<double>(bucket.weights[k]) * static_cast<double>(bucket.received[k][i]);
      }
      alone.gradient[i] = 0.5 * static_cast<double>(bucket.gradient[i]);
      auto& [first, second, third] = states[i];
      const bool decays = bucket.decay[i / 32] != 0;
      if (PlainRule::knows(type))
        plain[i] = PlainRule(config).step(plain[i], alone.gradient[i], {&first, &second, &third},
                                          decays, lr, s);
      if (type == "linear")
        plain[i] = linear_step(config, plain[i], alone.gradient[i], states[i], decays, lr);
    }
    alone.update(*rule, lr, s);
    const auto furthest = [](const auto& found, const std::vector<double>& expected) {
      double worst = 0;
      for (std::size_t i = 0; i < kRuled; ++i)
        worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]) /
                                    (1 + std::abs(expected[i])));
      return worst;
    };
    INFO(config.dump(), " terms ", terms, " step ", s);
    REQUIRE(furthest(bucket.x, alone.x) < tolerance);
    for (std::size_t k = 0; k < state_count; ++k)
      REQUIRE(furthest(bucket.states[k], alone.states[k]) < tolerance);
    if (PlainRule::knows(type) || type == "linear") REQUIRE(furthest(bucket.x, plain) < tolerance);
  }
}

}  // namespace

TEST_CASE("kernels/optimizer: every rule agrees with its plain definition, for 0 to 5 neighbours") {
  for (const nlohmann::json& config : every_rule()) {
    for (int terms = 0; terms <= 5; ++terms) {
      compare_with_definition<double>(config, terms, 1e-13);
      compare_with_definition<float>(config, terms, 3e-5);
    }
  }
}

TEST_CASE("kernels/optimizer: parity with PyTorch and decent-dp") {
  const nlohmann::json document = read_json_file("golden/optimizers.json");
  CHECK(document["optimizers"].size() == 38);
  const auto compare = [&]<class T>(const nlohmann::json& item, double tolerance, T) {
    const std::size_t kept_steps = follow_golden<T>(
        document, *make_rule(item["type"], item["config"]),
        [&](std::size_t step) { return document["rates"][step].get<double>(); },
        [&](const Bucket<T>& bucket, std::size_t kept, std::size_t row, std::size_t column,
            std::size_t place) {
          INFO(item["type"].dump(), item["config"].dump(), " kept step ", kept, " number ", row,
               ", ", column);
          CHECK(std::abs(static_cast<double>(bucket.x[place]) -
                         item["x"][kept][row][column].get<double>()) < tolerance);
        });
    CHECK(kept_steps == 3);
  };
  for (const auto& item : document["optimizers"]) {
    compare(item, 1e-13, double{});
    compare(item, 3e-5, float{});
  }
}

TEST_CASE(
    "kernels/optimizer: Adam's correction for the noise of a rank's own gradients may follow the "
    "number of ranks") {
  const auto after = [](const nlohmann::json& correction, int ranks) {
    const auto rule = make_rule("adam", {{"noise_correction", correction}});
    rule->know_ranks(ranks);
    CHECK(rule->facts().corrects_noise == (correction != 1.0 && ranks > 1));
    Bucket<double> bucket(kRuled, 2);
    bucket.gradient = normal_numbers<double>(kRuled, 1);
    bucket.update(*rule, 0.01, 2);
    return bucket.x;
  };
  CHECK(after(4.0, 5) == after("ranks", 4));
  CHECK(after(1.0, 5) == after("ranks", 1));
  CHECK(after(4.0, 5) != after(1.0, 5));
}

TEST_CASE(
    "kernels/optimizer: adagrad's sum is torch's after every step, its initial value included") {
  const auto rule = make_rule("adagrad", {{"initial_accumulator_value", 0.25}});
  Bucket<double> bucket(32, 1);
  bucket.gradient.assign(32, 0.5);
  for (std::int64_t s = 1; s <= 3; ++s) {
    bucket.update(*rule, 0.01, s);
    CHECK(bucket.states[0] == std::vector<double>(32, 0.25 + 0.25 * static_cast<double>(s)));
  }
}

TEST_CASE(
    "kernels/optimizer: nadam's product of momenta at any step, in time that does not grow with "
    "it") {
  for (const double beta1 : {0.0, 0.5, 0.9, 0.999}) {
    for (const double decay : {0.0, 1e-9, 4e-3, 0.3, 20.0}) {
      rules::Nadam rule;
      rule.settings.beta1 = beta1;
      rule.momentum_decay = decay;
      double product = 1, worst = 0;
      for (std::int64_t s = 1; s <= 3000; ++s) {
        product *= rule.momentum(s);
        worst = std::max(worst, std::abs(rule.momentum_product(s) - product));
      }
      CHECK(worst < 1e-14);
    }
  }
  CHECK(1.0 - rules::Nadam().momentum_product(1'000'000'000'000) == 1.0);
  // At step 10^12 what is left is Adam with a constant momentum: its first gradient after zeros
  // moves by (1 - β1) + β1 (1 - β1).
  const auto rule = make_rule("nadam", {{"betas", {0.5, 0.0}}});
  Bucket<double> bucket(32, 2);
  bucket.gradient.assign(32, 3.0);
  bucket.update(*rule, 0.5, 1'000'000'000'000);
  CHECK(bucket.x[31] == doctest::Approx(-0.5 * (0.5 + 0.25)).epsilon(1e-8));
}

TEST_CASE(
    "kernels/optimizer: lion moves by the sign, not at all where there is none, and does not hide "
    "NaN") {
  const auto rule = make_rule("lion", {{"weight_decay", 0.5}});
  Bucket<float> bucket(64, 1);
  bucket.decay = {1, 0};
  bucket.x.assign(64, 1.0f);
  bucket.gradient[1] = bucket.gradient[33] = 1e-20f;
  bucket.gradient[2] = bucket.gradient[34] = -1e20f;
  bucket.gradient[3] = std::numeric_limits<float>::quiet_NaN();
  bucket.update(*rule, 0.25, 1);
  CHECK(bucket.x[0] == 0.875f);
  CHECK(bucket.x[1] == 0.625f);
  CHECK(bucket.x[2] == 1.125f);
  CHECK(std::isnan(bucket.x[3]));
  CHECK(bucket.x[32] == 1.0f);
  CHECK(bucket.x[33] == 0.75f);
  CHECK(bucket.x[34] == 1.25f);
}

TEST_CASE("kernels/optimizer: a centered rmsprop stays finite where the gradient never changes") {
  const auto rule = make_rule("rmsprop", {{"alpha", 0.5}, {"centered", true}, {"eps", 1e-3}});
  Bucket<float> bucket(kRuled, 2);
  bucket.gradient = normal_numbers<float>(kRuled, 4);
  bool below = false;
  for (std::int64_t s = 1; s <= 100; ++s) {
    bucket.update(*rule, 0.01, s);
    for (std::size_t i = 0; i < kRuled; ++i) {
      below = below || bucket.states[0][i] < bucket.states[1][i] * bucket.states[1][i];
      REQUIRE(std::isfinite(bucket.x[i]));
    }
  }
  CHECK(below);
}

TEST_CASE("kernels/optimizer: a rule brings its default rate, and a text says them all") {
  OptimizerRegistry registry("optimizer");
  const auto none = [](ConfigSection&) { return std::unique_ptr<OptimizerRule>(); };
  CHECK(registry.rates() == "0.001");
  registry.add("usual", none);
  for (const char* name : {"b", "a", "c"}) registry.add(name, none, "", 0.5);
  registry.add("d", none, "", 2.0);
  CHECK(registry.rates() == "0.001, but 0.5 for `b`, `a` and `c`, 2 for `d`");
  CHECK(registry.rate("usual") == 1e-3);
  CHECK(registry.rate("a") == 0.5);
  CHECK(registry.rate("unknown") == 1e-3);
  CHECK_THROWS_AS(registry.add("d", none, "", 3.0), Error);
  CHECK(registry.rate("d") == 2.0);
}

TEST_CASE("kernels/optimizer: names of states, and bytes per parameter of fp32") {
  // Of accum_adamw K = 4: the first step moves 24, the two in the middle 28, the last one 36.
  const auto rows = nlohmann::json::parse(R"([
    ["sgd", {}, [], 12], ["sgd", {"momentum": 0.9}, ["momentum_buffer"], 20],
    ["adamw", {}, ["exp_avg", "exp_avg_sq"], 28],
    ["accum_adamw", {}, ["exp_avg", "exp_avg_sq", "accum_grad"], 29],
    ["rmsprop", {}, ["square_avg"], 20],
    ["rmsprop", {"momentum": 0.9}, ["square_avg", "momentum_buffer"], 28],
    ["rmsprop", {"centered": true}, ["square_avg", "grad_avg"], 28],
    ["rmsprop", {"centered": true, "momentum": 0.9}, ["square_avg", "momentum_buffer", "grad_avg"], 36],
    ["adagrad", {}, ["sum"], 20], ["nadam", {}, ["exp_avg", "exp_avg_sq"], 28],
    ["lion", {}, ["exp_avg"], 20], ["schedule_free_adamw", {}, ["z_minus_y", "exp_avg_sq"], 28],
    ["lars", {"momentum": 0.0}, [], 20], ["lars", {}, ["momentum_buffer"], 28],
    ["lamb", {}, ["exp_avg", "exp_avg_sq"], 44], ["adafactor", {}, ["variance"], 52],
    ["muon", {}, ["momentum_buffer", "direction"], 0]])");
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    const auto rule = make_rule(row[0], row[1]);
    CHECK(rule->facts().states == row[2].get<std::vector<std::string>>());
    if (row[0] != "muon") CHECK(rule->bytes_per_parameter(4) == row[3]);
  }
  CHECK(make_rule("adamw", nlohmann::json::object())->bytes_per_parameter(8) == 56);
}

// Defaults and ranges are those of docs/config.md, which a test compares.
TEST_CASE("kernels/optimizer: settings that do not go together are refused by key") {
  const auto rows = nlohmann::json::parse(R"([
    ["sgd", {"nesterov": true}, "nesterov"], ["sgd", {"betas": [0.9, 0.99]}, "betas"],
    ["adam", {"betas": [0.9]}, "betas"], ["adam", {"betas": [0.9, 1.0]}, "betas"],
    ["adam", {"betas": 0.9}, "betas"], ["lion", {"betas": [0.9]}, "as [0.9, 0.99]"],
    ["adamv", {}, "did you mean 'adam"], ["schedule_free_adamw", {"betas": [0.0, 0.999]}, "betas"],
    ["lars", {"momentum": 0.0, "nesterov": true}, "nesterov"],
    ["adafactor", {"eps": 1e-3}, "eps"], ["adafactor", {"eps": [1e-3]}, "eps"],
    ["adafactor", {"eps": [null, null]}, "eps"], ["adafactor", {"eps": [-1, 1e-3]}, "eps"],
    ["adafactor", {"eps": [1e-3, "x"]}, "eps"], ["adafactor", {"eps": [1, 2, 3]}, "eps"],
    ["muon", {"ns_coefficients": [3.4445, -4.775]}, "ns_coefficients"]])");
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    CHECK(test::fails(ExitCode::kUsage, row[2].get<std::string>(),
                      [&] { make_rule(row[0], row[1]); }));
  }
}

TEST_CASE(
    "kernels/optimizer: elements without gradient and state stay finite, however small eps is") {
  for (const std::string type : {"adamw", "rmsprop", "adagrad", "nadam"}) {
    const auto rule = make_rule(type, {{"eps", 1e-60}});
    Bucket<float> bucket(32, rule->facts().states.size());
    bucket.update(*rule, 0.1, 1);
    CHECK(bucket.x == std::vector<float>(32, 0.0f));
  }
}

}  // namespace starling::test
