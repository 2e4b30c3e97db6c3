#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/graph_plan.h"
#include "comm/agreement.h"
#include "core/device_trace.h"
#include "core/trace.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/open_backend.h"
#include "layers/layer.h"
#include "tests/cuda/fake_ranks.h"
#include "tests/cuda/graph_job.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"
#include "tests/support/stderr_lines.h"

// What a replayed step costs the host, what the timeline says of it, and every reason why steps are
// issued instead.
namespace starling::tests {
namespace {

using test::stderr_lines;

using cuda::shim::Call;
using cuda::shim::CallKind;
using nlohmann::json;

/// A trainer on a GPU of its own, whose steps the test takes one by one.
struct Steps {
  explicit Steps(const json& json_config) {
    register_builtins();
    config = read_gpu_config(json_config, {});
    const ShapeTrace trace = trace_shapes(config);
    trainer = std::make_unique<Trainer>(config, RankLayout{}, trace, backend, *transport);
    trainer->initialise();
  }
  ~Steps() {
    cuda::shim::hold_events(false);
    trainer.reset();
    config.model.reset();
  }
  void take(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i) trainer->step();
  }

  cuda::CudaBackend backend{0, false, false, true};
  std::unique_ptr<Transport> transport = make_single_transport();
  TrainConfig config;
  std::unique_ptr<Trainer> trainer;
};

json long_lines(const json& patch) {
  return with(with(graph_config(1000), {{"log_every", 1000}}), patch);
}

}  // namespace

TEST_CASE(
    "cuda/graph_trainer: a replayed step is a handful of calls, no memory and no wait but fp16's, "
    "though the device lags behind") {
  for (const auto& [precision, averages] : {std::pair<std::string, bool>{"fp32", false},
                                            {"bf16", false},
                                            {"fp16", false},
                                            {"fp32", true}}) {
    CAPTURE(precision);
    CAPTURE(averages);
    json patch{{"precision", precision}};
    if (averages) patch["ema"] = json::object();
    Steps steps(long_lines(patch));
    steps.take(steps.trainer->graphs().warm_up_steps() + 2);
    cuda::shim::hold_events(true);
    std::vector<std::uint64_t> ends;  // of each step: the recordings until then
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      if (step >= 2) cuda::shim::let_events_to(ends[static_cast<std::size_t>(step) - 2]);
      const cuda::RuntimeCounters before = cuda::runtime_counters();
      const MemoryStats memory = steps.backend.memory_stats();
      const std::uint64_t copied = cuda::Staging::copied_bytes();
      const std::vector<Call> calls = cuda::shim::recorded([&] { steps.take(1); });
      const cuda::RuntimeCounters after = cuda::runtime_counters();
      CHECK(after.graph_launches - before.graph_launches == 1);
      if (!averages) CHECK(after.launches - before.launches == 1);  // the loss goes to its record
      CHECK(after.device_allocations == before.device_allocations);
      CHECK(steps.backend.memory_stats().allocations == memory.allocations);
      // fp16 needs the scale before the launch: one wait, for the step before, where that is not
      // through.
      CHECK(after.host_waits - before.host_waits == (precision == "fp16" && step > 0 ? 1 : 0));
      // the host copies nothing but fp16's flag
      CHECK(cuda::Staging::copied_bytes() - copied <= (precision == "fp16" ? 16 : 0));
      std::map<CallKind, int> kinds;
      for (const Call& call : calls) ++kinds[call.kind];
      CHECK(kinds[CallKind::kLaunchGraph] == 1);
      ends.push_back(cuda::shim::recordings());
      if (averages) continue;
      // The batch to its place, the step's values, fp16's flag; the next batch, twice where the
      // loader was late.
      CHECK(kinds[CallKind::kCopy] <= 5);
      CHECK(kinds[CallKind::kRecord] <= 16);
      // two of them of the launch: for what the update and the communication stream were told
      CHECK(kinds[CallKind::kWait] <= 6);
    }
    cuda::shim::hold_events(false);
  }
}

TEST_CASE(
    "cuda/graph_trainer: the timeline has one span of the device for a replayed step, and those of "
    "buckets for issued ones") {
  Tracer tracer(0);
  const auto origin = Tracer::Clock::now();
  {
    Tracer::install(&tracer);
    struct Uninstall {
      ~Uninstall() { Tracer::install(nullptr); }
    } const uninstall;
    Steps steps(long_lines(json::object()));
    DeviceTrace trace(tracer, steps.backend);
    steps.take(8);
    trace.finish();
  }
  std::map<std::string, std::map<std::string, int>> count;  // by lane and name
  for (const json& event : json::parse(fmt::format("[{}]", tracer.events(origin)))) {
    if (event["ph"] == "X") ++count[event["cat"]][event["name"]];
  }
  CHECK(count["compute"]["capture"] == 1);
  CHECK(count["compute"]["replay"] == 5);
  CHECK(count["compute (device)"]["replay"] == 5);
  CHECK(count["compute (device)"]["forward"] == 3);
  CHECK(count["update (device)"]["update bucket 0"] == 3);
}

namespace {

/// A layer that does what a graph cannot hold.
class Offending final : public Layer {
 public:
  /// What the layer does in training, given its backend; set by the test.
  static inline std::function<void(Backend&, const Tensor&)> deed;
  /// On the thread where this is false the layer behaves.
  static inline thread_local bool here = true;

 private:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    if (pass.training && here && pass.backend.device() == DeviceType::kCuda)
      deed(pass.backend, x.value());
    return x;
  }
};

json offending() { return with_layer<Offending>(graph_config(6), "test_offending", 3); }

struct Fallback {
  GraphOutcome outcome;
  std::vector<std::string> lines;
};

Fallback train_alone(const json& config) {
  Fallback result;
  result.lines = stderr_lines([&] {
    cuda::CudaBackend gpu(0, false, false, true);
    result.outcome = run_alone({.config = config}, gpu);
  });
  return result;
}

void check_line(const std::vector<std::string>& lines, const std::string& part) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  CAPTURE(all);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("steps run without CUDA graphs, because ") != std::string::npos);
  CHECK(lines[0].find(part) != std::string::npos);
}

}  // namespace

TEST_CASE(
    "cuda/graph_trainer: a layer that waits or copies to the host is found at the capture, and the "
    "run goes on with the same bits") {
  const std::pair<const char*, std::function<void(Backend&, const Tensor&)>> deeds[] = {
      {"synchronize while a graph is captured",
       [](Backend& backend, const Tensor&) { backend.synchronize(); }},
      {"copy_to_host while a graph is captured",
       [](Backend& backend, const Tensor& x) {
         std::vector<std::byte> host(x.bytes());
         backend.copy_to_host(x, host.data());
       }},
      {"cudaStreamSynchronize",
       [](Backend& backend, const Tensor&) {
         try {
           cuda::host_wait_stream(backend.native_stream());
         } catch (const std::exception&) {  // a plug-in that does not look at what CUDA says
         }
       }},
      {"no plug-in is safe",
       [](Backend& backend, const Tensor&) {
         if (backend.capturing()) throw std::runtime_error("no plug-in is safe");
       }},
  };
  for (const auto& [part, deed] : deeds) {
    for (const std::int64_t accumulate : {1, 3}) {
      for (const std::string choice : {"auto", "true"}) {
        CAPTURE(std::string(part));
        CAPTURE(accumulate);
        CAPTURE(choice);
        Offending::deed = deed;
        const json config = with(offending(), {{"accumulate", accumulate}});
        const Fallback eager = train_alone(with(config, {{"cuda_graphs", false}}));
        CHECK(eager.lines.empty());
        json graphs = config;
        if (choice == "true") graphs["cuda_graphs"] = true;
        const Fallback fallen = train_alone(graphs);
        check_line(fallen.lines, part);
        CHECK(fallen.lines[0].find("step 4 could not be captured") != std::string::npos);
        CHECK(differences(fallen.outcome, eager.outcome) == "");
        CHECK(fallen.outcome.launches == 0);
        CHECK(fallen.outcome.graphs == 0);
      }
    }
  }
}

TEST_CASE(
    "cuda/graph_trainer: a later micro-batch that cannot be captured is issued, behind the earlier "
    "ones' graphs") {
  int captures = 0;
  Offending::deed = [&captures](Backend& backend, const Tensor&) {
    if (backend.capturing() && ++captures == 3) backend.synchronize();
  };
  const json config = with(offending(), {{"accumulate", 3}});
  const Fallback eager = train_alone(with(config, {{"cuda_graphs", false}}));
  const Fallback fallen = train_alone(config);
  check_line(fallen.lines, "synchronize");
  CHECK(fallen.outcome.launches == 2);
  CHECK(differences(fallen.outcome, eager.outcome) == "");
}

TEST_CASE(
    "cuda/graph_trainer: with cuda_graphs true, too, work that outgrows 64 graphs is issued, or "
    "refused beforehand") {
  const json many =
      with(graph_config(4),
           {{"optimizer", {{"type", "accum_adamw"}, {"momentum", nullptr}, {"accum_iter", 65}}}});
  const Fallback fallen = train_alone(many);
  check_line(fallen.lines, "after 65 of them, which would be 65 graphs; at most 64 are made");
  CHECK(fallen.outcome.launches == 0);
  CHECK(test::error_of(ExitCode::kUsage,
                       [&] {
                         train_alone(with(many, {{"cuda_graphs", true}}));
                       }) ==
        "[config] cuda_graphs: is true, but the work of steps comes again after 65 of them, which "
        "would be 65 graphs; at most 64 are "
        "made; allowed here: auto, false");
  // What it will be, without a device.
  const json gpu{{"device", "cuda"}};
  const auto text = [&](const json& config, int ranks) {
    const TrainConfig read = read_train_config(with(config, gpu), "test", {ranks, ranks});
    return graph_text(read, {ranks, ranks});
  };
  CHECK(text(many, 1) ==
        "graphs: none, because the work of steps comes again after 65 of them, which would be 65 "
        "graphs; at most 64 are "
        "made\n");
  CHECK(text(graph_config(4), 1) ==
        "graphs: 1, each of one micro-batch; the work of steps comes again after each\n");
  const json ring = with(graph_config(4),
                         {{"accumulate", 3}, {"sync", {{"topology", {{"type", "one-peer-exp"}}}}}});
  CHECK(text(ring, 8) ==
        "graphs: 5, each of one micro-batch; the work of steps comes again after 3; 10, and 6, "
        "where ranks read each other's "
        "memory; none where exchanges pass through the host\n");
  const json matching =
      with(graph_config(4), {{"sync", {{"topology", {{"type", "random-matching"}}}}}});
  CHECK(text(matching, 4) == "graphs: none, because the topology's rounds never repeat\n");
  CHECK(text(with(matching, {{"cuda_graphs", false}}), 4) ==
        "graphs: none, because cuda_graphs is false\n");
  CHECK(text(with(graph_config(4), {{"sync", {{"transport", "staged"}}}}), 2) ==
        "graphs: none, because exchanges by staged pass through the host\n");
}

TEST_CASE(
    "cuda/graph_trainer: exchanges through host memory are issued, in one line of rank 0; with "
    "cuda_graphs true all ranks refuse") {
  const auto train = [](const json& config) {
    std::vector<GraphOutcome> outcomes(2);
    const test::Folder folder;
    run_ranks(2, by_host, [&](int rank, Backend& backend, Transport& transport) {
      outcomes[static_cast<std::size_t>(rank)] =
          run_graph_job({config, {2, 2}}, backend, transport, folder / ".");
    });
    return outcomes;
  };
  std::vector<GraphOutcome> with_auto;
  check_line(stderr_lines([&] { with_auto = train(graph_config(5)); }), "pass through the host");
  const std::vector<GraphOutcome> off = train(with(graph_config(5), {{"cuda_graphs", false}}));
  for (std::size_t rank = 0; rank < 2; ++rank) CHECK(differences(with_auto[rank], off[rank]) == "");
  const std::string refused = test::error_of(ExitCode::kUsage, [&] {
    train(with(graph_config(5), {{"cuda_graphs", true}}));
  });
  CHECK(test::contains(refused, "pass through the host; allowed here: auto, false"));
}

TEST_CASE("cuda/graph_trainer: on a CPU auto says nothing, and true one line") {
  const auto run = [](const json& config) {
    return stderr_lines([&] { run_alone({.config = config}, *open_backend(DeviceType::kCpu, 1)); });
  };
  CHECK(run(graph_config(2)).empty());
  check_line(run(with(graph_config(2), {{"cuda_graphs", true}})), "the device is no GPU");
}

}  // namespace starling::tests
