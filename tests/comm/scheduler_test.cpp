#include <doctest/doctest.h>

#include "comm/algorithm.h"
#include "comm/scheduler.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "support.h"

using namespace starling;
using test::TinyModel;

namespace {

/// Notes what the scheduler tells it.
class Recorder final : public Algorithm {
 public:
  explicit Recorder(const AlgorithmSite& site) : Algorithm(site) {}
  void begin(const StepInfo& info) override { calls += "begin" + std::to_string(info.step) + " "; }
  void bucket_ready(int bucket) override { calls += std::to_string(bucket) + " "; }
  void backward_done() override { calls += "done"; }
  bool is_through_with(int bucket) const override { return bucket <= through; }
  void finish() override {}
  void resume(std::int64_t) override {}
  int through = -1;
  std::string take() { return std::exchange(calls, {}); }
  std::string calls;
};

class NoRule final : public OptimizerRule {
 public:
  NoRule() : OptimizerRule({}) {}
  int bytes_per_parameter(int element_size) const override { return element_size; }

 private:
  CpuStep<float> step_fp32(double, std::int64_t) const override { return {}; }
  CpuStep<double> step_fp64(double, std::int64_t) const override { return {}; }
};

struct Setup {
  std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  std::unique_ptr<Transport> transport = make_single_transport();
  NoRule rule;
  TinyModel model{{Shape{32}, Shape{32}, Shape{32}, Shape{32}}};
  // buckets {p3, p2} and {p1, p0}
  BucketPlan plan = plan_buckets(model.order, {}, DType::kFloat32, 256);
  std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, 0, false);
  std::unique_ptr<Mixer> mixer = transport->make_mixer(*backend);
  Recorder recorder{{.backend = *backend,
                     .transport = *transport,
                     .mixer = *mixer,
                     .rule = rule,
                     .buckets = buckets}};
};

}  // namespace

TEST_CASE(
    "comm/scheduler: buckets are handed over in bucket order, whatever the order of gradients") {
  Setup s;
  BucketScheduler scheduler(s.plan, s.buckets, s.recorder, false);
  auto& p = s.model.parameters;
  scheduler.begin_step({4});
  scheduler.ready(*p[3]);
  CHECK(s.recorder.take() == "begin4 ");
  scheduler.ready(*p[2]);
  CHECK(s.recorder.take() == "0 ");
  scheduler.ready(*p[1]);
  scheduler.ready(*p[0]);
  CHECK(s.recorder.take() == "1 ");
  scheduler.end_backward();
  CHECK(s.recorder.take() == "done");
  scheduler.begin_step({5});
  scheduler.ready(*p[0]);
  scheduler.ready(*p[1]);
  CHECK(s.recorder.take() == "begin5 ");  // bucket 1 is full but waits for bucket 0
  scheduler.ready(*p[2]);
  scheduler.ready(*p[3]);
  CHECK(s.recorder.take() == "0 1 ");
  scheduler.end_backward();
  CHECK(s.recorder.take() == "done");
}

TEST_CASE(
    "comm/scheduler: a missing gradient stops the step with the parameter's name, or counts as "
    "zero where allowed") {
  Setup s;
  auto& p = s.model.parameters;
  {
    BucketScheduler scheduler(s.plan, s.buckets, s.recorder, false);
    scheduler.begin_step({7});
    for (const int i : {3, 2, 0}) scheduler.ready(*p[static_cast<std::size_t>(i)]);
    const std::string text = test::error_text([&] { scheduler.end_backward(); });
    CHECK(text.find("step 7") != text.npos);
    CHECK(text.find("'p1'") != text.npos);
    CHECK(text.find("unused_parameters") != text.npos);
  }
  s.recorder.take();
  BucketScheduler scheduler(s.plan, s.buckets, s.recorder, true);
  scheduler.begin_step({8});
  test::set_numbers(p[1]->grad, [](std::int64_t) { return 3.0; });
  test::set_numbers(p[0]->grad, [](std::int64_t) { return 2.0; });
  for (const int i : {3, 2, 0}) scheduler.ready(*p[static_cast<std::size_t>(i)]);
  scheduler.end_backward();
  CHECK(s.recorder.take() == "begin8 0 1 done");
  for (const double value : test::numbers(p[1]->grad)) CHECK(value == 0.0);
  for (const double value : test::numbers(p[0]->grad)) CHECK(value == 2.0);
}

TEST_CASE("comm/scheduler: gradients that pass have memory from their first number to the update") {
  Setup s;
  s.buckets = make_buckets(s.plan, *s.backend, DType::kFloat32, s.rule, false, DType::kFloat32,
                           GradientMemory::kPassing);
  auto& p = s.model.parameters;
  CHECK_FALSE(p[3]->grad);
  for (const int through : {0, -1}) {  // the algorithm wants a bucket in bucket_ready(), or later
    s.recorder.through = through;
    BucketScheduler scheduler(s.plan, s.buckets, s.recorder, true);
    scheduler.begin_step({1});
    for (const int i : {3, 2}) {
      scheduler.begun(*p[static_cast<std::size_t>(i)]);
      CHECK(p[2]->grad.raw() == s.buckets[0].gradients.raw() + 128);
      scheduler.ready(*p[static_cast<std::size_t>(i)]);
    }
    CHECK(static_cast<bool>(p[3]->grad) == (through < 0));
    CHECK(static_cast<bool>(s.buckets[0].gradients) == (through < 0));
    scheduler.end_backward();  // the others get zeros
    REQUIRE(s.buckets[1].gradients);
    for (const double value : test::numbers(s.buckets[1].gradients)) CHECK(value == 0.0);
  }
}

TEST_CASE(
    "comm/scheduler: a gradient reported twice is a defect; frozen parameters are passed over") {
  Setup s;
  BucketScheduler scheduler(s.plan, s.buckets, s.recorder, false);
  scheduler.begin_step({0});
  scheduler.ready(*s.model.parameters[3]);
  CHECK(test::error_text([&] { scheduler.ready(*s.model.parameters[3]); }).find("ready twice") !=
        std::string::npos);
  Parameter frozen;
  frozen.name = "frozen";
  frozen.trainable = false;
  frozen.index = 17;
  scheduler.ready(frozen);
  CHECK(s.recorder.take() == "begin0 ");
}
