#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/operations/updates.h"
#include "kernels/cpu/update.h"
#include "kernels/open_backend.h"
#include "tests/kernels/built_in.h"
#include "tests/kernels/optimizer_reference.h"

namespace starling::test {
namespace {

constexpr std::size_t kUpdated = 32 * 13;

template <class T>
bool same_bits(const Bucket<T>& a, const Bucket<T>& b) {
  return a.x == b.x && a.states == b.states;
}

/// Runs the copies for every instruction set that this machine has; they give the same bits.
template <class T>
void check_instruction_sets(const OptimizerRule& rule) {
  for (int terms = 0; terms <= 4; ++terms) {
    for (std::int64_t s = 1; s <= 4; ++s) {
      with_step_of<T>(rule, 0.01, s, [&](const auto& step) {
        using Step = std::remove_cvref_t<decltype(step)>;
        if constexpr (!kMeasuresLayers<Step>) {
          std::vector<Bucket<T>> results(3, filled_bucket<T>(kUpdated, Step::kStates, terms));
          std::vector<const T*> pointers;
          cpu::scalar::update_span(step, results[0].span(0, kUpdated, pointers));
          if (cpu::hardware_isa() >= cpu::Isa::kAvx2) {
            cpu::avx2::update_span(step, results[1].span(0, kUpdated, pointers));
            CHECK(same_bits(results[0], results[1]));
          }
          if (cpu::hardware_isa() >= cpu::Isa::kAvx512) {
            cpu::avx512::update_span(step, results[2].span(0, kUpdated, pointers));
            CHECK(same_bits(results[0], results[2]));
          }
          CHECK(!same_bits(results[0], filled_bucket<T>(kUpdated, Step::kStates, terms)));
        }
      });
    }
  }
}

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
  for (const auto& received : bucket.received)
    args.received.push_back(tensor_of(backend, received));
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
  for (const nlohmann::json& config : every_rule()) {
    CAPTURE(config.dump());
    check_instruction_sets<float>(*make_rule(config));
    check_instruction_sets<double>(*make_rule(config));
  }
}

TEST_CASE("kernels/optimizer: a control that skips mixes alone, whatever the gradient holds") {
  for (const nlohmann::json& config : every_rule()) {
    const auto rule = make_rule(config);
    const auto backend = open_backend(DeviceType::kCpu, 2);
    for (int terms = 0; terms <= 3; ++terms) {
      for (const bool whole_sum : {false, true}) {
        auto bucket = filled_bucket<float>(9000 / 32 * 32, rule->facts().states.size(), terms);
        if (whole_sum) bucket.self_weight = 0;
        bucket.gradient[17] = std::numeric_limits<float>::infinity();
        bucket.gradient[40] = std::numeric_limits<float>::quiet_NaN();
        UpdateArgs args = args_of(*backend, bucket);
        args.control = tensor_of<double>(*backend, {1.0, 1.0});
        args.low = Tensor(*backend, args.x.shape(), DType::kFloat16);
        backend->update({*rule, args});
        std::vector<float> mixed = bucket.x;
        for (std::size_t i = 0; i < mixed.size() && terms > 0; ++i) {
          mixed[i] =
              whole_sum ? bucket.weights[0] * bucket.received[0][i] : bucket.self_weight * mixed[i];
          for (std::size_t k = whole_sum; k < bucket.received.size(); ++k)
            mixed[i] = mixed[i] + bucket.weights[k] * bucket.received[k][i];
        }
        CHECK(vector_of<float>(*backend, args.x_out) == mixed);
        for (std::size_t k = 0; k < args.states.size(); ++k)
          CHECK(vector_of<float>(*backend, args.states[k]) == bucket.states[k]);
        const auto low = vector_of<Float16>(*backend, args.low);
        bool rounded = true;
        for (std::size_t i = 0; i < mixed.size(); ++i)
          rounded = rounded && low[i].bits == Float16(mixed[i]).bits;
        CHECK(rounded);
      }
    }
  }
}

TEST_CASE(
    "kernels/optimizer: the backend's update equals the rule's, for any number of threads, and its "
    "low-precision copy is the new parameter rounded") {
  const auto compare = [](auto low_type, auto type, int threads) {
    using Low = decltype(low_type);
    using T = decltype(type);
    const auto backend = open_backend(DeviceType::kCpu, threads);
    for (const nlohmann::json& config : every_rule()) {
      const auto rule = make_rule(config);
      for (const auto& [terms, copy] : {std::pair{1, true}, {2, false}, {18, threads > 1}}) {
        CAPTURE(config.dump());
        CAPTURE(terms);
        auto bucket = filled_bucket<T>(8192 * 2 + 96, rule->facts().states.size(), terms);
        UpdateArgs args = args_of(*backend, bucket);
        if (copy) args.low = Tensor(*backend, args.x.shape(), DTypeOf<Low>::value);
        backend->update({*rule, args});
        bucket.update(*rule, 0.01, 3);
        CHECK(vector_of<T>(*backend, args.x_out) == bucket.x);
        for (std::size_t k = 0; k < args.states.size(); ++k)
          CHECK(vector_of<T>(*backend, args.states[k]) == bucket.states[k]);
        std::size_t wrong = 0;
        const auto low = copy ? vector_of<Low>(*backend, args.low) : std::vector<Low>();
        for (std::size_t i = 0; i < low.size(); ++i)
          wrong += low[i].bits != Low(static_cast<float>(bucket.x[i])).bits;
        CHECK(wrong == 0);
      }
    }
  };
  compare(BFloat16{}, float{}, 1);
  compare(BFloat16{}, float{}, 3);
  compare(Float16{}, float{}, 2);
  compare(Float16{}, double{}, 2);
}

}  // namespace starling::test
