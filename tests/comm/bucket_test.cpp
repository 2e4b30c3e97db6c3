#include "comm/bucket.h"

#include <doctest/doctest.h>

#include <atomic>

#include "core/error.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/kernels/optimizer_reference.h"

using namespace starling;
using test::contains;
using test::TinyModel;

namespace {

std::unique_ptr<OptimizerRule> rule_of(const char* type) {
  return test::make_rule(type, nlohmann::json::object());
}

}  // namespace

TEST_CASE(
    "comm/bucket: parameters take multiples of 32 elements, and a bucket closes when it reaches "
    "its size") {
  TinyModel model({Shape{5}, Shape{32}, Shape{33}, Shape{2, 40}, Shape{1}});
  // In traced order 1 → 32, 80 → 96, 33 → 64, 32 → 32, 5 → 32 elements; 128 elements in fp32 close
  // a bucket.
  const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 512);
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].elements == 128);
  CHECK(plan.buckets[1].elements == 128);
  REQUIRE(plan.buckets[0].slots.size() == 2);
  CHECK(plan.buckets[0].slots[0].parameter->name == "p4");
  CHECK(plan.buckets[0].slots[0].elements == 1);
  CHECK(plan.buckets[0].slots[1].offset == 32);
  CHECK(plan.buckets[0].slots[1].elements == 80);
  CHECK(plan.buckets[1].slots[1].offset == 64);
  CHECK(plan.bucket_of == std::vector<int>{1, 1, 1, 0, 0});
}

TEST_CASE(
    "comm/bucket: one byte more or less moves the boundary; a tiny size gives a bucket a "
    "parameter") {
  TinyModel model({Shape{32}, Shape{32}, Shape{32}});
  CHECK(plan_buckets(model.order, {}, DType::kFloat32, 256).buckets.size() == 2);
  CHECK(plan_buckets(model.order, {}, DType::kFloat32, 256.5).buckets.size() == 1);
  CHECK(plan_buckets(model.order, {}, DType::kFloat64, 256).buckets.size() == 3);
  CHECK(plan_buckets(model.order, {}, DType::kFloat32, 1).buckets.size() == 3);
  CHECK(plan_buckets(model.order, {}, DType::kFloat32, 1e18).buckets.size() == 1);
}

TEST_CASE("comm/bucket: unused parameters join the last bucket, frozen ones none") {
  TinyModel model({Shape{32}, Shape{32}, Shape{32}, Shape{32}});
  model.parameters[1]->trainable = false;
  const BucketPlan plan = plan_buckets({model.order[0], model.order[1], model.order[2]},
                                       {model.parameters[0].get()}, DType::kFloat32, 128);
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[1].slots.size() == 2);
  CHECK(plan.buckets[1].slots[1].parameter->name == "p0");
  CHECK(plan.bucket_of == std::vector<int>{1, -1, 1, 0});
  CHECK(plan_buckets({}, {model.parameters[0].get()}, DType::kFloat32, 128).buckets.size() == 1);
  CHECK(plan_buckets({}, {}, DType::kFloat32, 128).buckets.empty());
}

TEST_CASE("comm/bucket: values and gradients are zeroed views, decay marks weights only") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  TinyModel model({Shape{3, 11}, Shape{5}});
  const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1e9);
  const std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 2, false);
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].states.size() == 2);
  CHECK(model.parameters[0]->value.shape() == Shape{3, 11});
  CHECK(model.parameters[0]->value.raw() == buckets[0].parameters.raw() + 128);
  CHECK(model.parameters[1]->grad.raw() == buckets[0].gradients.raw());
  for (const Tensor& tensor : {buckets[0].parameters, buckets[0].gradients, buckets[0].states[1]}) {
    for (const double value : test::numbers(tensor)) CHECK(value == 0.0);
  }
  const auto decay = buckets[0].decay.span<std::uint8_t>();
  CHECK(std::vector<int>(decay.begin(), decay.end()) == std::vector<int>{0, 1, 1});
  const std::vector<Bucket> all = make_buckets(plan, *backend, DType::kFloat64, 0, true);
  for (const std::uint8_t mark : all[0].decay.span<std::uint8_t>()) CHECK(mark == 1);

  std::vector<Bucket> passing = make_buckets(plan, *backend, DType::kFloat32, *rule_of("adamw"),
                                             false, DType::kFloat32, GradientMemory::kPassing);
  CHECK_FALSE(passing[0].gradients);
  // Whatever was in the memory, the padding is zero.
  backend->fill(Tensor(*backend, passing[0].parameters.shape(), DType::kFloat32), 7.0);
  passing[0].hold_gradients();
  const std::vector<double> numbers = test::numbers(passing[0].gradients);
  for (const std::size_t i : {5, 31, 32 + 33, 32 + 63}) CHECK(numbers[i] == 0.0);
  CHECK(model.parameters[0]->grad.raw() == passing[0].gradients.raw() + 128);
  passing[0].drop_gradients();
  CHECK_FALSE(model.parameters[0]->grad);
  CHECK_FALSE(passing[0].gradients);
}

TEST_CASE("comm/bucket: states are as long as the rule says, and groups have their parts of them") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  TinyModel model({Shape{3, 2, 5, 11}, Shape{5}, Shape{1, 64}});  // in buckets the other way round
  const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1e9);
  std::vector<Bucket> buckets =
      make_buckets(plan, *backend, DType::kFloat32, *rule_of("adafactor"), false);
  REQUIRE(buckets.size() == 1);
  Bucket& bucket = buckets[0];
  REQUIRE(bucket.states.size() == 1);
  CHECK(bucket.parameters.elements() == 64 + 32 + 352);
  // A row and 64 columns; the vector's own; three rows and 110 columns. Each begins where a block
  // does.
  CHECK(bucket.states[0].elements() == (32 + 64) + 32 + (32 + 128));
  REQUIRE(bucket.state_extents.size() == 3);
  CHECK(bucket.state_extents[1].first == 96);
  CHECK_FALSE(bucket.state_extents[1].own);
  CHECK(bucket.state_extents[2].first == 128);
  CHECK(bucket.state_extents[2].elements == 160);
  CHECK(bucket.state_extents[2].own);
  set_groups(*backend, buckets,
             [](const Parameter& parameter) { return parameter.shape.rank() == 4 ? 1u : 0u; },
             {false, false});
  REQUIRE(bucket.runs.size() == 2);
  CHECK(bucket.runs[0].state_first == 0);
  CHECK(bucket.runs[0].state_elements == 128);
  CHECK(bucket.runs[1].state_first == 128);
  CHECK(bucket.runs[1].state_elements == 160);
  const std::vector<LayerExtent> layers = layers_in(bucket, bucket.runs[1]);
  REQUIRE(layers.size() == 1);
  CHECK(layers[0].rows == 3);
  CHECK(layers[0].columns == 110);
  CHECK(layers[0].padding == 22);

  const std::vector<Bucket> plain =
      make_buckets(plan, *backend, DType::kFloat32, *rule_of("adamw"), false);
  CHECK(plain[0].states.size() == 2);
  CHECK(plain[0].states[0].elements() == plain[0].parameters.elements());
  CHECK(plain[0].state_extents[2].first == plain[0].layout->slots[2].offset);
}

TEST_CASE("comm/bucket: ranks that disagree all stop with the first differing name of each side") {
  FakeWorld world(3);
  std::atomic<int> told{0};
  world.run([&](Transport& transport) {
    TinyModel model({Shape{4}, Shape{5}, Shape{6}});
    if (transport.rank() == 2) model.parameters[1]->name = "other";
    const BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 1e9);
    const std::string text =
        test::error_text([&] { agree_on_plan(plan, DType::kFloat32, transport); });
    if (text.find("ranks 0 and 2") != text.npos && text.find("place 1") != text.npos &&
        text.find("rank 0 has 'p1' (5 fp32") != text.npos &&
        text.find("rank 2 has 'other' (5 fp32") != text.npos) {
      ++told;
    }
  });
  CHECK(told == 3);
}

TEST_CASE("comm/bucket: shapes, types, bucket sizes and missing parameters are compared too") {
  /// What both of two ranks are told, of which one plans something else.
  const auto told = [](const auto& change) {
    std::vector<std::string> texts(2);
    FakeWorld world(2);
    world.run([&](Transport& transport) {
      TinyModel model({Shape{4}, Shape{40}});
      DType dtype = DType::kFloat32;
      double bytes = 1e9;
      if (transport.rank() == 1) change(model, dtype, bytes);
      const BucketPlan plan = plan_buckets(model.order, {}, dtype, bytes);
      texts[static_cast<std::size_t>(transport.rank())] =
          test::error_text([&] { agree_on_plan(plan, dtype, transport); });
    });
    CHECK(texts[0] == texts[1]);
    return texts[0];
  };
  CHECK(told([](TinyModel&, DType&, double&) {}).empty());
  CHECK(contains(told([](TinyModel& model, DType&, double&) {
                   model.parameters[1]->shape = Shape{20, 2};
                 }),
                 "20×2"));
  CHECK(contains(told([](TinyModel&, DType& dtype, double&) { dtype = DType::kFloat64; }), "fp64"));
  CHECK(contains(told([](TinyModel&, DType&, double& bytes) { bytes = 8; }), "bucket 1"));
  CHECK(contains(told([](TinyModel& model, DType&, double&) { model.order.pop_back(); }),
                 "rank 1 has no more parameters"));
}
