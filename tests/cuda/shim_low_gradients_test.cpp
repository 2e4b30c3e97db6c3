#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/low_gradients.h"
#include "comm/transports/staged.h"
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
using cuda::shim::CallKind;

/// Backends opened meanwhile have convolutions by stand-ins, whose gradients stay low or not.
class Libraries {
 public:
  explicit Libraries(bool low) {
    cuda::shim::set_libraries(cuda::shim::FakeLibraries{.on = true});
    setenv("STARLING_LOW_GRADIENTS", low ? "1" : "0", 1);
  }
  ~Libraries() {
    cuda::shim::set_libraries({});
    unsetenv("STARLING_LOW_GRADIENTS");
  }
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;
};

/// Kernels that a step's gradients cost beside their sums, by kind.
struct Widenings {
  int each = 0;     ///< of one gradient
  int buckets = 0;  ///< of a bucket's
  bool operator==(const Widenings&) const = default;
};
Widenings count(const std::vector<Call>& calls) {
  Widenings result;
  for (const Call& call : calls) {
    if (call.kind != CallKind::kLaunch) continue;
    result.each += call.label.find("take_gradient(") != std::string::npos;
    result.buckets += call.label.find("widen_blocks") != std::string::npos;
  }
  return result;
}

struct Outcome {
  std::vector<double> numbers;  ///< of rank 0
  Widenings last;               ///< of rank 0's last step, where it is alone
};

constexpr int kLowSteps = 5;

Outcome train_alone(const TrainingSettings& settings, bool low) {
  const Libraries libraries(low);
  cuda::CudaBackend gpu(0, false, false, true);
  const auto transport = make_single_transport();
  TrainingJob job(gpu, *transport, settings);
  Outcome outcome;
  for (int i = 0; i < kLowSteps; ++i) {
    const bool last = i + 1 == kLowSteps;
    if (last) cuda::shim::start_recording();
    job.step();
    if (last) outcome.last = count(cuda::shim::stop_recording());
  }
  job.finish();
  outcome.numbers = job.numbers();
  return outcome;
}

Outcome train_together(const TrainingSettings& settings, bool low) {
  const Libraries libraries(low);
  Outcome outcome;
  const auto staged = [](std::unique_ptr<Transport> inner, Backend&) { return make_staged_transport(std::move(inner)); };
  cuda::shim::start_recording();
  run_ranks(2, staged, [&](int rank, Backend& backend, Transport& transport) {
    TrainingJob job(backend, transport, settings);
    for (int i = 0; i < kLowSteps; ++i) job.step();
    job.finish();
    if (rank == 0) outcome.numbers = job.numbers();
  });
  outcome.last = count(cuda::shim::stop_recording());
  return outcome;
}

/// All kinds of convolutions of kNormNet are cuDNN's; in fp16 also with batch norms in them.
std::vector<TrainingSettings> in_low_precision() {
  std::vector<TrainingSettings> all;
  for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool defer_norms : {false, true}) {
      TrainingSettings settings;
      settings.compute = compute;
      settings.net = kNormNet;
      settings.defer_norms = defer_norms;
      settings.in_backward = compute != DType::kFloat16;
      settings.check_overflow = compute == DType::kFloat16;
      all.push_back(settings);
    }
  }
  return all;
}
constexpr int kConvolutions = 4;  // of kNormNet

/// A bucket of four weights, and what their gradients are.
struct Four {
  static constexpr std::int64_t kElements[4] = {32, 70, 5, 96};

  explicit Four(Backend& backend) : parameters(4) {
    std::vector<Parameter*> order;
    for (int i = 0; i < 4; ++i) {
      parameters[static_cast<std::size_t>(i)].name = "p" + std::to_string(i);
      parameters[static_cast<std::size_t>(i)].shape = Shape{kElements[i], 1};
      parameters[static_cast<std::size_t>(i)].index = i;
      parameters[static_cast<std::size_t>(i)].product = true;
      order.push_back(&parameters[static_cast<std::size_t>(i)]);
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
    CAPTURE(settings.defer_norms);
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
    CAPTURE(settings.defer_norms);
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
  const Libraries libraries(true);
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
  const Libraries libraries(true);
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
  // A weight that is read twice in a pass, once, in micro-batches of a group, and again after a pass that ended one.
  const auto gradient = [](bool low, const std::function<void(const std::function<void(int uses, bool add, bool report)>&)>& passes,
                           bool& in_low) {
    const Libraries libraries(low);
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
    passes([&](int uses, bool add, bool report) {
      Pass pass{.backend = gpu, .tape = &tape, .training = true};
      const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
      Variable x(filled({2, 4, 4, 8}, seed++));
      for (int i = 0; i < uses; ++i) x = functions::conv2d(x, weight, nullptr, window, pass);
      const Tensor labels(gpu, Shape{2}, DType::kInt32);
      const std::int32_t classes[2] = {3, 1};
      gpu.copy_from_host(classes, labels);
      tape.backward(functions::cross_entropy(functions::global_avg_pool(x, pass), labels, 0.0, 1.0, pass), 1.0, add, report);
    });
    in_low = weight.grad_in_low;
    widen_gradients(gpu, buckets[0]);
    std::vector<float> result(static_cast<std::size_t>(weight.grad.elements()));
    gpu.copy_to_host(weight.grad, result.data());
    return result;
  };
  using Passes = std::function<void(const std::function<void(int, bool, bool)>&)>;
  struct Variant {
    const char* name;
    bool low;
    Passes passes;
  };
  for (const Variant& variant : {Variant{"once", true, [](const auto& pass) { pass(1, false, true); }},
                                 {"twice in a pass", false, [](const auto& pass) { pass(2, false, true); }},
                                 {"two micro-batches", false,
                                  [](const auto& pass) {
                                    pass(1, false, false);
                                    pass(1, true, true);
                                  }},
                                 {"a group that goes on", false,
                                  [](const auto& pass) {
                                    pass(1, false, true);
                                    pass(1, true, true);
                                  }},
                                 {"once again", true, [](const auto& pass) {
                                    pass(2, false, true);
                                    pass(1, false, true);
                                  }}}) {
    CAPTURE(variant.name);
    bool low = false, wide = false;
    const std::vector<float> found = gradient(true, variant.passes, low), expected = gradient(false, variant.passes, wide);
    CHECK(found == expected);
    CHECK(low == variant.low);
    CHECK(!wide);
    bool any = false;
    for (const float number : found) any = any || number != 0.0f;
    CHECK(any);
  }
}

TEST_CASE("cuda/low gradients: there is memory for them where cuDNN is, training is in low precision, and nobody has turned them off") {
  const auto has = [](bool low, DType compute) {
    const Libraries libraries(low);
    cuda::CudaBackend gpu(0, false, false, true);
    return gpu.low_precision_gradients(compute);
  };
  CHECK(has(true, DType::kBFloat16));
  CHECK(has(true, DType::kFloat16));
  CHECK(!has(true, DType::kFloat32));
  CHECK(!has(false, DType::kBFloat16));
  cuda::shim::set_libraries(cuda::shim::FakeLibraries{.on = false});
  CHECK(!cuda::CudaBackend(0, false, false, true).low_precision_gradients(DType::kBFloat16));
  cuda::shim::set_libraries({});
}

}  // namespace starling::tests
