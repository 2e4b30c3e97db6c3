#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/operations/updates.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/pool.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/optimizer.h"
#include "tests/cuda/support.h"
#include "tests/cuda/update_side.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/support/errors.h"

// Captured work against the same work done at once, through the fake runtime, which keeps addresses
// and arguments as a graph does.
namespace starling::cuda {
namespace {

using shim::Call;
using shim::CallKind;
using test::make_rule;
using tests::bucket_side;
using tests::host_copy;
using tests::UpdateCase;
using tests::UpdateSide;

std::string error_of(const std::function<void()>& body) {
  return test::error_of(ExitCode::kInternal, body);
}
using test::contains;
std::vector<CallKind> kinds_of(const std::vector<Call>& calls) {
  std::vector<CallKind> kinds;
  for (const Call& call : calls) kinds.push_back(call.kind);
  return kinds;
}

CudaBackend own_backend() { return CudaBackend(0, false, false, true); }

StepValues values_of(std::int64_t step) {
  return {.lr = 0.01 / static_cast<double>(step),
          .step = step,
          .loss_scale = step % 2 == 0 ? 1024.0 : 256.0,
          .dropout_counter = static_cast<std::uint64_t>(step) << 24};
}

template <class T>
void set_step(UpdateSide<T>& side, const StepValues& values) {
  side.args.lr = values.lr;
  side.args.step = values.step;
  side.args.gradient_scale = 0.77 / values.loss_scale;
}
template <class T>
bool same(const UpdateSide<T>& one, const UpdateSide<T>& other) {
  const auto alike = [&](const Tensor& a, const Tensor& b) {
    return one.bytes_of(a) == other.bytes_of(b);
  };
  return alike(one.args.x, other.args.x) &&
         std::equal(one.args.states.begin(), one.args.states.end(), other.args.states.begin(),
                    alike);
}

template <class T>
void compare_rule(CudaBackend& backend, const nlohmann::json& config, int terms) {
  CAPTURE(config.dump());
  CAPTURE(terms);
  CAPTURE(sizeof(T));
  const auto rule = make_rule(config);
  const std::size_t states = rule->facts().states.size();
  const UpdateCase how{.n = 32 * 70, .terms = terms};
  UpdateSide<T> eager = bucket_side<T>(backend, how, states),
                replayed = bucket_side<T>(backend, how, states);
  const std::int64_t steps = config.value("accum_iter", 1);
  const auto period = static_cast<std::size_t>(steps);
  std::vector<std::unique_ptr<DeviceGraph>> graphs(period);
  for (std::int64_t step = 1; step <= 3 * steps; ++step) {
    CAPTURE(step);
    const StepValues values = values_of(step);
    set_step(eager, values);
    backend.update({*rule, eager.args});
    auto& graph = graphs[static_cast<std::size_t>(step) % period];
    if (!graph) {
      set_step(replayed, values);
      REQUIRE(backend.begin_capture(values));
      backend.update({*rule, replayed.args});
      graph = backend.end_capture();
      if (step == 1) CHECK_FALSE(same(replayed, eager));  // not done yet
    }
    graph->launch(values);
    CHECK(same(replayed, eager));
  }
}

}  // namespace

TEST_CASE("cuda/graph: the pool keeps the memory of graphs apart while one lives") {
  Pool pool(0, "GPU", nullptr);
  const auto take = [&](std::size_t bytes, StreamKind stream = StreamKind::kCompute) {
    return pool.take(bytes, stream);
  };
  pool.give_back(take(4096));  // what eager work has left is used
  const std::uint64_t driver = runtime_counters().device_allocations;
  pool.begin_capture();
  const Pool::Block a = take(4096);
  CHECK(a.graphs);
  pool.give_back(a);
  const Pool::Block other = take(4096, StreamKind::kUpdate);
  CHECK(other.data != a.data);  // within a capture a block stays with its stream
  const Pool::Block again = take(4096);
  CHECK(again.data == a.data);
  pool.give_back(other);
  pool.end_capture(true);
  CHECK(pool.graph_bytes() == 2 * 4096);
  CHECK(pool.stats().in_use == 4096);

  // `again` outlives its capture: neither eager work nor the next graph gets it.
  const Pool::Block eager = take(4096);
  CHECK_FALSE(eager.graphs);
  CHECK(eager.data != a.data);
  CHECK(eager.data != other.data);
  pool.begin_capture();
  const Pool::Block second = take(4096);
  CHECK(second.data == other.data);  // graphs run one after the other
  CHECK(take(4096).data != again.data);
  pool.give_back(second);
  pool.give_back(eager);  // captured work may have read it
  pool.end_capture(true);
  CHECK(take(4096).data != eager.data);

  pool.give_back(again);
  pool.release_graph();
  const Pool::Block later = take(4096);
  CHECK(later.data != again.data);
  CHECK(later.data != second.data);
  pool.release_graph();
  std::vector<std::byte*> free;
  for (int i = 0; i < 3; ++i) free.push_back(take(4096).data);
  CHECK(std::count(free.begin(), free.end(), again.data) == 1);
  CHECK(std::count(free.begin(), free.end(), second.data) == 1);
  CHECK(std::count(free.begin(), free.end(), eager.data) == 1);
  CHECK(pool.graph_bytes() == 4096);  // one block was never given back
  CHECK(runtime_counters().device_allocations == driver);
}

TEST_CASE("cuda/graph: what a launch asks of the runtime") {
  CudaBackend backend = own_backend();
  const auto rule = make_rule("adamw", nlohmann::json::object());
  UpdateSide<float> bucket = bucket_side<float>(backend, {}, rule->facts().states.size());
  set_step(bucket, values_of(1));
  REQUIRE(backend.begin_capture(values_of(1)));
  backend.update({*rule, bucket.args});
  shim::start_recording();
  const std::unique_ptr<DeviceGraph> graph = backend.end_capture();
  // or updates and exchanges would have the compute stream's
  CHECK(shim::stop_recording().back().own_priorities);
  for (std::int64_t step = 1; step <= 4; ++step) {
    CAPTURE(step);
    // The values, the mark of their pinned memory, what the update and the communication stream
    // hold, the graph, its mark.
    CHECK(kinds_of(shim::recorded([&] { graph->launch(values_of(step)); })) ==
          std::vector<CallKind>{CallKind::kCopy, CallKind::kRecord, CallKind::kRecord,
                                CallKind::kWait, CallKind::kRecord, CallKind::kWait,
                                CallKind::kLaunchGraph, CallKind::kRecord});
  }
}

TEST_CASE(
    "cuda/graph: updates of every rule and phase from the step block have the bits of eager ones") {
  CudaBackend backend = own_backend();
  for (const nlohmann::json& config : test::every_rule()) {
    for (const int terms : {0, 1, 3}) {
      compare_rule<float>(backend, config, terms);
      compare_rule<double>(backend, config, terms);
    }
  }
}

TEST_CASE(
    "cuda/graph: a launch with a step of another kind is an error, not another rule's numbers") {
  CudaBackend backend = own_backend();
  const auto rule = make_rule("accum_adamw", {{"accum_iter", 3}});
  UpdateSide<float> bucket = bucket_side<float>(backend, {}, rule->facts().states.size());
  const StepValues values = values_of(1);
  set_step(bucket, values);
  REQUIRE(backend.begin_capture(values));
  CHECK_THROWS_AS(
      [&] {
        UpdateArgs other = bucket.args;
        other.lr *= 2;
        backend.update({*rule, other});
      }(),
      Error);
  backend.update({*rule, bucket.args});
  const auto graph = backend.end_capture();
  graph->launch(values_of(1));
  graph->launch(values_of(4));
  CHECK(contains(error_of([&] { graph->launch(values_of(3)); }), "another kind"));
}

TEST_CASE(
    "cuda/graph: the backend refuses in a capture what needs the device, and goes on after it was "
    "abandoned") {
  CudaBackend backend = own_backend();
  const Tensor x(backend, Shape{64}, DType::kFloat32);
  backend.fill(x, 1.0);
  const Event before = backend.record();
  std::vector<float> host(64);
  REQUIRE(backend.begin_capture({}));
  backend.fill(x, 2.0);
  CHECK_THROWS_AS(backend.copy_to_host(x, host.data()), Error);
  CHECK_THROWS_AS(backend.copy_to_host_later(x, host.data()), Error);
  CHECK_THROWS_AS(backend.copy_from_host(host.data(), x), Error);
  CHECK_THROWS_AS(backend.synchronize(), Error);
  CHECK_THROWS_AS(backend.synchronize(before), Error);
  CHECK_THROWS_AS(backend.begin_capture({}), Error);
  backend.abandon_capture();
  CHECK(host_copy(x) == std::vector<float>(64, 1.0f));

  // A plug-in's layer that synchronises the stream itself: the capture's end says so.
  REQUIRE(backend.begin_capture({}));
  CHECK_THROWS_AS(host_wait_stream(backend.native_stream()), Error);
  CHECK(contains(error_of([&] { (void)backend.end_capture(); }), "cudaStreamSynchronize"));
  backend.fill(x, 3.0);
  CHECK(host_copy(x) == std::vector<float>(64, 3.0f));

  REQUIRE(backend.begin_capture({}));
  const Event fork = backend.record();
  {
    const StreamScope scope(backend, StreamKind::kCommunication);
    backend.wait(fork);
    backend.fill(x, 4.0);
  }
  CHECK(contains(error_of([&] { (void)backend.end_capture(); }), "stream communication"));
}

TEST_CASE("cuda/graph: events across a capture's ends") {
  CudaBackend backend = own_backend();
  const Tensor x(backend, Shape{64}, DType::kFloat32);
  backend.fill(x, 1.0);
  const auto upload = [&](float number) {
    const StreamScope scope(backend, StreamKind::kUpload);
    backend.copy_from_host(std::vector<float>(64, number).data(), x);
    return backend.record();
  };
  const Tensor y(backend, x.shape(), x.dtype());
  const Event uploaded = upload(1.0f);
  REQUIRE(backend.begin_capture({}));
  backend.wait(uploaded);
  backend.copy(x, y);
  const Event inside = backend.record();
  CHECK_THROWS_AS(backend.synchronize(inside), Error);
  CHECK_THROWS_AS((void)backend.done(inside), Error);
  const auto graph = backend.end_capture();
  CHECK(backend.done(inside));  // no launch that it could stand for
  upload(7.0f);
  shim::start_recording();
  graph->launch({});
  {
    const StreamScope scope(backend, StreamKind::kUpload);
    backend.wait(inside);  // before the next upload: for the launch
  }
  const std::vector<Call> calls = shim::stop_recording();
  REQUIRE(kinds_of(calls) ==
          std::vector<CallKind>{CallKind::kRecord, CallKind::kWait, CallKind::kRecord,
                                CallKind::kWait, CallKind::kRecord, CallKind::kWait,
                                CallKind::kLaunchGraph, CallKind::kRecord, CallKind::kWait});
  std::set<StreamHandle> before;  // the update, the communication and the upload stream
  for (const std::size_t i : {0, 2, 4}) {
    before.insert(calls[i].stream);
    CHECK(calls[i + 1].event == calls[i].event);
    CHECK(calls[i + 1].stream == calls[6].stream);
  }
  CHECK(before.size() == 3);
  CHECK_FALSE(before.contains(calls[6].stream));
  CHECK(calls[4].stream == calls[8].stream);
  CHECK(calls[8].event == calls[7].event);
  backend.synchronize(inside);
  CHECK(host_copy(y) == std::vector<float>(64, 7.0f));
}

}  // namespace starling::cuda
