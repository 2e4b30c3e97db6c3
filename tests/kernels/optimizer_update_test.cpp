#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "kernels/cpu/update.h"
#include "kernels/math/adagrad.h"
#include "kernels/math/lion.h"
#include "kernels/math/nadam.h"
#include "kernels/math/rmsprop.h"
#include "kernels/math/rules.h"
#include "kernels/math/schedule_free.h"
#include "kernels/math/update_loop.h"
#include "kernels/open_backend.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::test {
namespace {

constexpr std::size_t kUpdated = 32 * 13;

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

template <class T>
bool same_bits(const Bucket<T>& a, const Bucket<T>& b) {
  return a.x == b.x && a.states == b.states;
}

template <class T>
bool close(const std::vector<T>& a, const std::vector<T>& b, double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= tolerance * (1 + std::abs(static_cast<double>(a[i])))))
      return false;
  }
  return true;
}

/// Runs the copies for every instruction set that this machine has; they give the same bits.
template <class T, class Rule>
void check_instruction_sets(const Rule& rule) {
  for (int terms = 0; terms <= 4; ++terms) {
    for (std::int64_t s = 1; s <= 4; ++s) {
      rule.template step<T>(0.01, s, [&](const auto& step) {
        using Step = std::remove_cvref_t<decltype(step)>;
        std::vector<Bucket<T>> results(3, filled_bucket<T>(kUpdated, Step::kStates, terms));
        std::vector<const T*> pointers;
        int count = 1;
        cpu::scalar::update_span(step, results[0].span(0, kUpdated, pointers));
        if (cpu::hardware_isa() >= cpu::Isa::kAvx2) {
          cpu::avx2::update_span(step, results[1].span(0, kUpdated, pointers));
          CHECK(same_bits(results[0], results[1]));
          ++count;
        }
        if (cpu::hardware_isa() >= cpu::Isa::kAvx512) {
          cpu::avx512::update_span(step, results[2].span(0, kUpdated, pointers));
          CHECK(same_bits(results[0], results[2]));
          ++count;
        }
        CHECK(!same_bits(results[0], filled_bucket<T>(kUpdated, Step::kStates, terms)));
        CHECK(count >= 1);
      });
    }
  }
}

/// The rule of an imaginary plug-in: the sign of a running mean, decoupled decay.
template <class T>
struct SignStep {
  using Real = T;
  static constexpr int kStates = 1;
  static constexpr unsigned kReads = 1, kWrites = 1;
  T lr, beta, keep;
  STARLING_HD T operator()(T p, T g, T* state, bool decay) const {
    if (decay) p = p * keep;
    state[0] = beta * state[0] + (T(1) - beta) * g;
    return p - lr * (state[0] > T(0) ? T(1) : T(-1));
  }
};
struct Sign {
  double beta = 0.5;
  std::vector<std::string> state_names() const { return {"mean"}; }
  template <class T, class Run>
  void step(double lr, std::int64_t, Run&& run) const {
    run(SignStep<T>{static_cast<T>(lr), static_cast<T>(beta), static_cast<T>(1.0 - lr * 0.5)});
  }
};

template <class T>
Tensor tensor_of(Backend& backend, const std::vector<T>& values) {
  Tensor result(backend, Shape{static_cast<std::int64_t>(values.size())}, DTypeOf<T>::value);
  backend.copy_from_host(values.data(), result);
  return result;
}

template <class T>
std::vector<T> vector_of(Backend& backend, const Tensor& tensor) {
  std::vector<T> result(static_cast<std::size_t>(tensor.elements()));
  backend.copy_to_host(tensor, result.data());
  return result;
}

template <class T>
UpdateArgs args_of(Backend& backend, const Bucket<T>& bucket) {
  UpdateArgs args;
  args.x = args.x_out = tensor_of(backend, bucket.x);
  args.gradient = tensor_of(backend, bucket.gradient);
  for (const auto& state : bucket.states) args.states.push_back(tensor_of(backend, state));
  for (const auto& received : bucket.received) args.received.push_back(tensor_of(backend, received));
  for (const T weight : bucket.weights) args.weights.push_back(static_cast<double>(weight));
  args.self_weight = static_cast<double>(bucket.self_weight);
  args.gradient_scale = static_cast<double>(bucket.gradient_scale);
  args.decay = tensor_of(backend, bucket.decay);
  args.lr = 0.01;
  args.step = 3;
  return args;
}

}  // namespace

TEST_CASE("kernels/optimizer: every instruction set gives the same bits") {
  const rules::AdamSettings settings{0.9, 0.99, 1e-6, 0.1};
  check_instruction_sets<float>(rules::Sgd{0.0, 0.1, false});
  check_instruction_sets<float>(rules::Sgd{0.9, 0.1, false});
  check_instruction_sets<double>(rules::Sgd{0.9, 0.1, true});
  check_instruction_sets<float>(rules::Adam<false>{settings});
  check_instruction_sets<float>(rules::Adam<true>{settings});
  check_instruction_sets<double>(rules::Adam<true>{settings});
  check_instruction_sets<float>(rules::AccumAdam<true>{settings, 3});
  check_instruction_sets<float>(rules::AccumAdam<false>{settings, 1});
  check_instruction_sets<double>(rules::AccumAdam<false>{settings, 3});
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) {
      check_instruction_sets<float>(rules::Rmsprop{0.9, 1e-6, momentum, 0.1, centered});
      check_instruction_sets<double>(rules::Rmsprop{0.9, 1e-6, momentum, 0.1, centered});
    }
  }
  check_instruction_sets<float>(rules::Adagrad{0.1, 1e-6, 0.1, 0.5});
  check_instruction_sets<double>(rules::Adagrad{0.1, 1e-6, 0.1, 0.5});
  check_instruction_sets<float>(rules::Nadam{settings, 0.1, false});
  check_instruction_sets<double>(rules::Nadam{settings, 0.1, true});
  check_instruction_sets<float>(rules::Lion{0.9, 0.99, 0.1});
  check_instruction_sets<double>(rules::Lion{0.9, 0.99, 0.1});
  check_instruction_sets<float>(rules::ScheduleFreeAdam{settings, 3});
  check_instruction_sets<double>(rules::ScheduleFreeAdam{settings});
}

TEST_CASE("kernels/optimizer: cutting a bucket into spans changes no bit") {
  for (const Reference& reference : reference_rules()) {
    const auto rule = make_rule(reference);
    for (int terms = 0; terms <= 4; ++terms) {
      auto whole = filled_bucket<float>(kUpdated, rule->state_names().size(), terms), cut = whole;
      std::vector<const float*> pointers;
      rule->update(whole.span(0, kUpdated, pointers), 0.01, 2);
      for (std::size_t first = 0, count = 32; first < kUpdated; first += count, count += 64) {
        count = std::min(count, kUpdated - first);
        rule->update(cut.span(first, count, pointers), 0.01, 2);
      }
      CHECK(same_bits(whole, cut));
    }
  }
}

TEST_CASE("kernels/optimizer: a pair mixes to the same bits on both sides, and mixing is c = w·x + sum of w_k·received") {
  const auto rule = make_rule("sgd", nlohmann::json::object());
  Bucket<float> a(64, 0), b(64, 0);
  a.x = normal_numbers<float>(64, 1);
  b.x = normal_numbers<float>(64, 2);
  a.received = {b.x};
  b.received = {a.x};
  a.weights = b.weights = {0.5f};
  a.self_weight = b.self_weight = 0.5f;
  const auto x = a.x;
  a.update(*rule, 0.1, 1);
  b.update(*rule, 0.1, 1);
  CHECK(a.x == b.x);
  for (std::size_t i = 0; i < 64; ++i) CHECK(a.x[i] == 0.5f * x[i] + 0.5f * a.received[0][i]);
}

TEST_CASE("kernels/optimizer: a plug-in's rule is a struct") {
  const RuleKernel<Sign> rule(Sign{0.25});
  CHECK(rule.state_names() == std::vector<std::string>{"mean"});
  CHECK(rule.bytes_per_parameter(4) == 20);
  for (int terms = 0; terms <= 3; ++terms) {
    auto bucket = filled_bucket<float>(kUpdated, 1, terms);
    const auto before = bucket;
    bucket.update(rule, 0.5, 1);
    auto wide = filled_bucket<double>(kUpdated, 1, terms);
    wide.update(rule, 0.5, 1);
    for (std::size_t i = 0; i < kUpdated; ++i) {
      float c = before.self_weight * before.x[i];
      for (std::size_t k = 0; k < before.received.size(); ++k) c += before.weights[k] * before.received[k][i];
      const float mean = 0.25f * before.states[0][i] + 0.75f * (before.gradient_scale * before.gradient[i]);
      const float kept = before.decay[i / 32] ? c * 0.75f : c;
      CHECK(bucket.x[i] == doctest::Approx(kept - 0.5f * (mean > 0 ? 1.0f : -1.0f)).epsilon(1e-6));
    }
    CHECK(close(bucket.x, std::vector<float>(wide.x.begin(), wide.x.end()), 1e-5));
  }
}

TEST_CASE("kernels/optimizer: the backend's update equals the rule's, for any number of threads") {
  for (const Reference& reference : reference_rules()) {
    const auto rule = make_rule(reference);
    for (const int threads : {1, 2, 3}) {
      const auto backend = open_backend(DeviceType::kCpu, threads);
      for (const int terms : {1, 2, 18}) {
        const std::size_t n = 1024 * 7 + 32;
        auto bucket = filled_bucket<float>(n, rule->state_names().size(), terms);
        const UpdateArgs args = args_of(*backend, bucket);
        backend->update({*rule, args});
        backend->synchronize();
        bucket.update(*rule, 0.01, 3);
        CHECK(vector_of<float>(*backend, args.x) == bucket.x);
        for (std::size_t k = 0; k < args.states.size(); ++k) CHECK(vector_of<float>(*backend, args.states[k]) == bucket.states[k]);
      }
    }
  }
}

TEST_CASE("kernels/optimizer: the backend's update with another output, without neighbours, and with a whole group's sum") {
  const auto backend = open_backend(DeviceType::kCpu, 2);
  const auto rule = make_rule("adamw", nlohmann::json::object());
  auto bucket = filled_bucket<double>(4096, 2, 0);
  UpdateArgs args = args_of(*backend, bucket);
  args.x_out = Tensor(*backend, args.x.shape(), DType::kFloat64);
  const auto before = bucket.x;
  args.self_weight = 0.25;  // without neighbours c = x, whatever the weight says
  bucket.self_weight = 1.0;
  backend->update({*rule, args});
  backend->synchronize();
  bucket.update(*rule, 0.01, 3);
  CHECK(vector_of<double>(*backend, args.x) == before);
  CHECK(vector_of<double>(*backend, args.x_out) == bucket.x);

  auto group = filled_bucket<double>(4096, 2, 2);
  group.self_weight = 0.0;
  const UpdateArgs group_args = args_of(*backend, group);
  backend->update({*rule, group_args});
  backend->synchronize();
  group.update(*rule, 0.01, 3);
  CHECK(vector_of<double>(*backend, group_args.x_out) == group.x);
}

TEST_CASE("kernels/optimizer: a control's factor multiplies the gradient's scale, in double") {
  for (const Reference& reference : reference_rules()) {
    const auto rule = make_rule(reference);
    const auto backend = open_backend(DeviceType::kCpu, 2);
    auto bucket = filled_bucket<float>(4096 + 32, rule->state_names().size(), 1);
    UpdateArgs args = args_of(*backend, bucket);
    args.gradient_scale = 0.77;
    const double factor = 0.123456789012345;
    args.control = tensor_of<double>(*backend, {factor, 0.0});
    backend->update({*rule, args});
    bucket.gradient_scale = static_cast<float>(0.77 * factor);
    bucket.update(*rule, 0.01, 3);
    CHECK(vector_of<float>(*backend, args.x_out) == bucket.x);
    for (std::size_t k = 0; k < args.states.size(); ++k) CHECK(vector_of<float>(*backend, args.states[k]) == bucket.states[k]);
  }
}

TEST_CASE("kernels/optimizer: a control that skips mixes alone, whatever the gradient holds") {
  for (const Reference& reference : reference_rules()) {
    const auto rule = make_rule(reference);
    const auto backend = open_backend(DeviceType::kCpu, 2);
    for (int terms = 0; terms <= 3; ++terms) {
      for (const bool whole_sum : {false, true}) {
        auto bucket = filled_bucket<float>(9000 / 32 * 32, rule->state_names().size(), terms);
        if (whole_sum) bucket.self_weight = 0;
        bucket.gradient[17] = std::numeric_limits<float>::infinity();
        bucket.gradient[40] = std::numeric_limits<float>::quiet_NaN();
        UpdateArgs args = args_of(*backend, bucket);
        args.control = tensor_of<double>(*backend, {1.0, 1.0});
        args.low = Tensor(*backend, args.x.shape(), DType::kFloat16);
        backend->update({*rule, args});
        std::vector<float> mixed = bucket.x;
        for (std::size_t i = 0; i < mixed.size() && terms > 0; ++i) {
          mixed[i] = whole_sum ? bucket.weights[0] * bucket.received[0][i] : bucket.self_weight * mixed[i];
          for (std::size_t k = whole_sum; k < bucket.received.size(); ++k) mixed[i] = mixed[i] + bucket.weights[k] * bucket.received[k][i];
        }
        CHECK(vector_of<float>(*backend, args.x_out) == mixed);
        for (std::size_t k = 0; k < args.states.size(); ++k) CHECK(vector_of<float>(*backend, args.states[k]) == bucket.states[k]);
        const auto low = vector_of<Float16>(*backend, args.low);
        bool rounded = true;
        for (std::size_t i = 0; i < mixed.size(); ++i) rounded = rounded && low[i].bits == Float16(mixed[i]).bits;
        CHECK(rounded);
      }
    }
  }
}

TEST_CASE("kernels/optimizer: the low-precision copy is the new parameter rounded, and changes no other bit") {
  const auto compare = [](auto low_type, auto type, int threads) {
    using Low = decltype(low_type);
    using T = decltype(type);
    for (const Reference& reference : reference_rules()) {
      const auto rule = make_rule(reference);
      const auto backend = open_backend(DeviceType::kCpu, threads);
      auto bucket = filled_bucket<T>(8192 * 2 + 96, rule->state_names().size(), 1);
      UpdateArgs args = args_of(*backend, bucket);
      args.low = Tensor(*backend, args.x.shape(), DTypeOf<Low>::value);
      backend->update({*rule, args});
      bucket.update(*rule, 0.01, 3);
      CHECK(vector_of<T>(*backend, args.x_out) == bucket.x);
      for (std::size_t k = 0; k < args.states.size(); ++k) CHECK(vector_of<T>(*backend, args.states[k]) == bucket.states[k]);
      const auto low = vector_of<Low>(*backend, args.low);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < low.size(); ++i) wrong += low[i].bits != Low(static_cast<float>(bucket.x[i])).bits;
      CHECK(wrong == 0);
    }
  };
  compare(BFloat16{}, float{}, 1);
  compare(BFloat16{}, float{}, 3);
  compare(Float16{}, float{}, 2);
  compare(Float16{}, double{}, 2);
}

}  // namespace starling::test
