#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/low_gradients.h"
#include "layers/functions.h"
#include "tests/cuda/fake_ranks.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/fake_libraries.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"

// Gradients that stay in low precision, as stand-ins of cuDNN's engines leave them: training has the bits of gradients that are widened one
// by one, and the kernels for that are gone.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::UsingLibraries;

/// Kernels that a step's gradients cost beside their sums, by kind.
struct Widenings {
  int each = 0;     ///< of one gradient
  int buckets = 0;  ///< of a bucket's
  bool operator==(const Widenings&) const = default;
};
Widenings count(const std::vector<Call>& calls) {
  return {cuda::shim::launches(calls, "take_gradient("), cuda::shim::launches(calls, "widen_blocks")};
}

struct Outcome {
  std::vector<double> numbers;  ///< of rank 0
  Widenings last;               ///< of rank 0's last step, where it is alone
};

constexpr int kLowSteps = 5;

Outcome train_alone(const TrainingSettings& settings, bool low) {
  const UsingLibraries libraries(true, low);
  cuda::CudaBackend gpu(0, false, false, true);
  const auto transport = make_single_transport();
  TrainingJob job(gpu, *transport, settings);
  Outcome outcome;
  for (int i = 1; i < kLowSteps; ++i) job.step();
  outcome.last = count(cuda::shim::recorded([&] { job.step(); }));
  job.finish();
  outcome.numbers = job.numbers();
  return outcome;
}

Outcome train_together(const TrainingSettings& settings, bool low) {
  const UsingLibraries libraries(true, low);
  Outcome outcome;
  cuda::shim::start_recording();
  run_ranks(2, by_host, [&](int rank, Backend& backend, Transport& transport) {
    TrainingJob job(backend, transport, settings);
    for (int i = 0; i < kLowSteps; ++i) job.step();
    job.finish();
    if (rank == 0) outcome.numbers = job.numbers();
  });
  outcome.last = count(cuda::shim::stop_recording());
  return outcome;
}

/// All kinds of convolutions of kNormNet are cuDNN's.
std::vector<TrainingSettings> in_low_precision() {
  std::vector<TrainingSettings> all;
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    const bool fp16 = compute == DType::kFloat16;
    all.push_back({.compute = compute, .in_backward = !fp16, .check_overflow = fp16, .net = kNormNet});
  }
  return all;
}
constexpr int kConvolutions = 4;  // of kNormNet

/// A bucket of four weights, and what their gradients are.
struct Four {
  static constexpr std::int64_t kElements[4] = {32, 70, 5, 96};

  explicit Four(Backend& backend) : parameters(4) {
    std::vector<Parameter*> order;
    for (Parameter& parameter : parameters) {
      parameter.index = static_cast<int>(order.size());
      parameter.name = "p" + std::to_string(parameter.index);
      parameter.shape = Shape{kElements[parameter.index], 1};
      parameter.product = true;
      order.push_back(&parameter);
    }
    plan = plan_buckets(order, {}, DType::kFloat32, 1e9);
    buckets = make_buckets(plan, backend, DType::kFloat32, 0, false, DType::kBFloat16);
  }

  /// Gradient i is i + 1 everywhere: in low precision where bit i of `pattern` is set, and then fp32 memory holds something else.
  void set(Backend& backend, unsigned pattern) {
    for (std::size_t i = 0; i < 4; ++i) {
      Parameter& parameter = parameters[i];
      parameter.grad_in_low = ((pattern >> i) & 1u) != 0;
      backend.fill(parameter.grad, parameter.grad_in_low ? -1.0 : static_cast<double>(i + 1));
      backend.fill(parameter.grad_low, parameter.grad_in_low ? static_cast<double>(i + 1) : -1.0);
    }
  }
  /// What an update without learning rate's subtleties makes of the gradients: 0 - gradient.
  std::vector<float> updated(Backend& backend) {
    Bucket& bucket = buckets[0];
    backend.fill(bucket.parameters, 0.0);
    UpdateArgs args{.x = bucket.parameters, .x_out = bucket.parameters, .lr = 1.0};
    set_gradients(backend, bucket, args);
    backend.update({*rule, args});
    return numbers(backend, bucket.parameters);
  }
  static std::vector<float> numbers(Backend& backend, const Tensor& tensor) {
    std::vector<float> result(static_cast<std::size_t>(tensor.elements()));
    backend.copy_to_host(tensor, result.data());
    return result;
  }
  /// Of the bucket: each weight's number, or zero in the padding; times `sign`.
  std::vector<float> expected(float sign) const {
    std::vector<float> result(static_cast<std::size_t>(buckets[0].parameters.elements()), 0.0f);
    for (std::size_t i = 0; i < 4; ++i) {
      const BucketSlot& slot = plan.buckets[0].slots[i];
      for (std::int64_t k = 0; k < slot.elements; ++k) result[static_cast<std::size_t>(slot.offset + k)] = sign * static_cast<float>(i + 1);
    }
    return result;
  }

  std::vector<Parameter> parameters;
  BucketPlan plan;
  std::vector<Bucket> buckets;
  std::unique_ptr<OptimizerRule> rule = test::make_rule("sgd", nlohmann::json::object());
};

}  // namespace

TEST_CASE("cuda/low gradients: one rank's training has the same bits, and widens no gradient of a convolution") {
  for (TrainingSettings settings : in_low_precision()) {
    CAPTURE(name_of(settings.compute));
    const auto compare = [&] {
      const Outcome wide = train_alone(settings, false), low = train_alone(settings, true);
      CHECK(low.numbers == wide.numbers);
      CHECK(wide.last == Widenings{kConvolutions, 0});
      CHECK(low.last == Widenings{0, 0});
    };
    compare();
    settings.clip.norm = 0.05;
    compare();
    settings.clip.per_bucket = true;
    compare();
    settings.clip = {};
    settings.algorithm = "allreduce";
    compare();
    settings.algorithm = "gossip";
    settings.graphs = true;  // the last step is a graph's, which issues nothing
    CHECK(train_alone(settings, true).numbers == train_alone(settings, false).numbers);
  }
}

TEST_CASE("cuda/low gradients: ranks that gossip have the same bits, and ranks that sum gradients widen a bucket at a time") {
  for (TrainingSettings settings : in_low_precision()) {
    CAPTURE(name_of(settings.compute));
    settings.bucket_bytes = 3000;
    CHECK(train_together(settings, true).last == Widenings{0, 0});
    CHECK(train_together(settings, true).numbers == train_together(settings, false).numbers);
    settings.algorithm = "allreduce";
    const Outcome wide = train_together(settings, false), low = train_together(settings, true);
    CHECK(low.numbers == wide.numbers);
    CHECK(wide.last == Widenings{2 * kLowSteps * kConvolutions, 0});
    CHECK(low.last.each == 0);
    CHECK(low.last.buckets > 0);
    CHECK(low.last.buckets < wide.last.each);
  }
}

TEST_CASE("cuda/low gradients: the update finds each gradient where it lies, whatever the pattern and however often it changes") {
  const UsingLibraries libraries(true);
  cuda::CudaBackend gpu(0, false, false, true);
  Four four(gpu);
  REQUIRE(static_cast<bool>(four.buckets[0].low_gradients.numbers));
  for (int round = 0; round < 2; ++round) {
    for (unsigned pattern = 0; pattern < 16; ++pattern) {
      CAPTURE(pattern);
      four.set(gpu, pattern);
      CHECK(four.updated(gpu) == four.expected(-1.0f));
      four.set(gpu, pattern);
      widen_gradients(gpu, four.buckets[0]);
      CHECK(Four::numbers(gpu, four.buckets[0].gradients) == four.expected(1.0f));
      for (const Parameter& parameter : four.parameters) CHECK(!parameter.grad_in_low);
    }
  }
  CHECK(four.buckets[0].low_gradients.tables.size() == 8);
}

TEST_CASE("cuda/low gradients: a capture that finds no table widens each gradient, and its replays do so too") {
  const UsingLibraries libraries(true);
  cuda::CudaBackend gpu(0, false, false, true);
  Four four(gpu);
  const StepValues values{.lr = 1.0};
  four.set(gpu, 0b0110);
  REQUIRE(gpu.begin_capture(values));
  UpdateArgs args{.x = four.buckets[0].parameters, .x_out = four.buckets[0].parameters, .lr = 1.0};
  set_gradients(gpu, four.buckets[0], args);
  gpu.update({*four.rule, args});
  const auto graph = gpu.end_capture();
  CHECK(!args.gradient_low);
  CHECK(four.buckets[0].low_gradients.tables.empty());
  for (int replay = 0; replay < 2; ++replay) {
    four.set(gpu, 0b0110);
    gpu.fill(four.buckets[0].parameters, 0.0);
    graph->launch(values);
    CHECK(Four::numbers(gpu, four.buckets[0].parameters) == four.expected(-1.0f));
  }
}

TEST_CASE("cuda/low gradients: only a parameter's sole contribution stays low; a sum of several is fp32's") {
  struct OnePass {
    int uses;  ///< of the weight
    bool add, report;
  };
  const auto gradient = [](bool low, const std::vector<OnePass>& passes, bool& in_low) {
    const UsingLibraries libraries(true, low);
    cuda::CudaBackend gpu(0, false, false, true);
    Parameter weight;
    weight.name = "weight";
    weight.shape = Shape{8, 3, 3, 8};
    weight.index = 0;
    weight.product = true;
    const BucketPlan plan = plan_buckets({&weight}, {}, DType::kFloat32, 1e9);
    std::vector<Bucket> buckets = make_buckets(plan, gpu, DType::kFloat32, 0, false, DType::kBFloat16);
    const auto filled = [&](const Shape& shape, unsigned seed) {
      const std::vector<float> values = test::normal_numbers<float>(static_cast<std::size_t>(shape.elements()), seed);
      const Tensor wide(gpu, shape, DType::kFloat32), narrow(gpu, shape, DType::kBFloat16);
      gpu.copy_from_host(values.data(), wide);
      gpu.cast({wide, narrow});
      return narrow;
    };
    gpu.cast({filled(weight.shape, 1), weight.value});
    refresh_low(gpu, buckets);
    Tape tape(gpu);
    tape.set_ready_observer([](Parameter&) {});
    unsigned seed = 2;
    for (const auto& [uses, add, report] : passes) {
      Pass pass{.backend = gpu, .tape = &tape, .training = true};
      const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
      Variable x(filled({2, 4, 4, 8}, seed++));
      for (int i = 0; i < uses; ++i) x = functions::conv2d(x, weight, nullptr, window, pass);
      const Tensor labels(gpu, Shape{2}, DType::kInt32);
      const std::int32_t classes[2] = {3, 1};
      gpu.copy_from_host(classes, labels);
      tape.backward(functions::cross_entropy(functions::global_avg_pool(x, pass), labels, 0.0, 1.0, pass), 1.0, add, report);
    }
    in_low = weight.grad_in_low;
    widen_gradients(gpu, buckets[0]);
    std::vector<float> result(static_cast<std::size_t>(weight.grad.elements()));
    gpu.copy_to_host(weight.grad, result.data());
    return result;
  };
  struct Variant {
    const char* name;
    bool low;
    std::vector<OnePass> passes;
  };
  for (const Variant& variant : {Variant{"once", true, {{1, false, true}}},
                                 {"twice in a pass", false, {{2, false, true}}},
                                 {"two micro-batches", false, {{1, false, false}, {1, true, true}}},
                                 {"a group that goes on after it was reported", false, {{1, false, true}, {1, true, true}}},
                                 {"once again", true, {{2, false, true}, {1, false, true}}}}) {
    CAPTURE(variant.name);
    bool low = false, wide = false;
    const std::vector<float> found = gradient(true, variant.passes, low), expected = gradient(false, variant.passes, wide);
    CHECK(found == expected);
    CHECK(low == variant.low);
    CHECK(!wide);
    CHECK(std::any_of(found.begin(), found.end(), [](float number) { return number != 0.0f; }));
  }
}

TEST_CASE("cuda/low gradients: there is memory for them where cuDNN is, training is in low precision, and nobody has turned them off") {
  const auto has = [](bool low, DType compute) {
    const UsingLibraries libraries(true, low);
    cuda::CudaBackend gpu(0, false, false, true);
    return gpu.low_precision_gradients(compute);
  };
  CHECK(has(true, DType::kBFloat16));
  CHECK(has(true, DType::kFloat16));
  CHECK(!has(true, DType::kFloat32));
  CHECK(!has(false, DType::kBFloat16));
  const UsingLibraries none(false);
  CHECK(!cuda::CudaBackend(0, false, false, true).low_precision_gradients(DType::kBFloat16));
}

}  // namespace starling::tests
