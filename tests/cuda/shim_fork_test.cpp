#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/error.h"
#include "core/forwarding_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/race_training.h"
#include "tests/cuda/support.h"
#include "tests/cuda/training_job.h"
#include "tests/fakes/cuda/noting_backend.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"
#include "tests/support/stderr_lines.h"

// Gradients of weights as a branch of a step's graph (Tape::forks): the same bits, ordered against
// all that reads or reuses what they touch, and few at a time.
namespace starling::tests {
namespace {

using test::stderr_lines;

using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::Finding;

TrainingSettings graph_settings(const char* net, bool in_backward, bool branches = true) {
  return {.in_backward = in_backward,
          .net = net,
          .start_at_begin = true,
          .graphs = true,
          .branches = branches};
}

std::vector<double> train(const TrainingSettings& settings) {
  cuda::CudaBackend backend(0, false, false, true);
  const auto transport = make_single_transport();
  TrainingJob job(backend, *transport, settings);
  for (int step = 0; step < 5; ++step) job.step();
  CHECK(job.graphs() > 0);
  job.finish();
  return job.numbers();
}

/// The record of training to the second launch of a graph.
std::vector<Call> record(const TrainingSettings& settings, bool (*drops)(int wait) = nullptr) {
  /// Leaves out the compute stream's waits for the branch that `drops` names, counted from 0 within
  /// a capture.
  class Forgetful final : public ForwardingBackend {
   public:
    Forgetful(Backend& inner, bool (*drops)(int)) : ForwardingBackend(inner), drops_(drops) {}
    bool begin_capture(const StepValues& values) override {
      waits_ = 0;
      return ForwardingBackend::begin_capture(values);
    }
    Event record() override {
      const Event event = ForwardingBackend::record();
      if (capturing() && stream() == StreamKind::kUpload) branch_.insert(event.id);
      return event;
    }
    void wait(Event event) override {
      const bool joins =
          capturing() && stream() == StreamKind::kCompute && branch_.contains(event.id);
      if (!joins || !drops_ || !drops_(waits_++)) ForwardingBackend::wait(event);
    }

   private:
    bool (*drops_)(int);
    int waits_ = 0;
    std::set<std::uint64_t> branch_;
  };
  cuda::shim::start_recording(true);
  {
    cuda::CudaBackend gpu(0, false, false, true);
    cuda::shim::NotingBackend noting(gpu);
    Forgetful backend(noting, drops);
    const auto transport = make_single_transport();
    TrainingJob job(backend, *transport, settings);
    for (int step = 0; step < 5; ++step) job.step();
    job.finish();
  }
  return cuda::shim::stop_recording();
}

}  // namespace

TEST_CASE("cuda/fork: with the branch and without it a run has the same bits") {
  for (const char* net : {kNet, kNormNet}) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(in_backward);
      CHECK(train(graph_settings(net, in_backward)) ==
            train(graph_settings(net, in_backward, false)));
    }
  }
  TrainingSettings fp16 = graph_settings(kNormNet, false);
  fp16.compute = DType::kFloat16;
  fp16.check_overflow = true;
  const std::vector<double> with_branch = train(fp16);
  fp16.branches = false;
  CHECK(train(fp16) == with_branch);
}

TEST_CASE(
    "cuda/fork: gradients of weights are captured on the branch, two layers' at most at once") {
  const auto count = [](bool branches) {
    cuda::CudaBackend backend(0, false, false, true);
    const auto transport = make_single_transport();
    TrainingJob job(backend, *transport, graph_settings(kNormNet, true, branches));
    while (job.graphs() == 0) {
      cuda::shim::start_recording();
      job.step();
      if (job.graphs() == 0) cuda::shim::stop_recording();
    }
    std::map<std::string, int> found;
    std::set<std::pair<cuda::EventHandle, std::uint64_t>> open;
    const cuda::StreamHandle upload = handle_of(backend, StreamKind::kUpload);
    bool captures = false;
    for (const Call& call : cuda::shim::stop_recording()) {
      if (call.kind == CallKind::kBeginCapture) captures = true;
      if (call.kind == CallKind::kEndCapture) captures = false;
      if (!captures) continue;
      // what own convolutions are made of
      const bool product = call.label.find("launch_product") != std::string::npos;
      if (call.kind == CallKind::kLaunch && product)
        ++found[call.stream == upload ? "branch" : "compute"];
      if (call.kind == CallKind::kLaunch && !product && call.stream == upload)
        ++found["other work on the branch"];
      if (call.kind == CallKind::kRecord && call.stream == upload)
        open.emplace(call.event, call.recording);
      if (call.kind == CallKind::kWait && call.stream != upload)
        open.erase({call.event, call.recording});
      found["at once"] = std::max(found["at once"], static_cast<int>(open.size()));
    }
    job.finish();
    return found;
  };
  std::map<std::string, int> with = count(true), without = count(false);
  // of four layers; the first one has no gradient of its input to go beside
  CHECK(with["branch"] == 3);
  CHECK(with["other work on the branch"] == 0);
  CHECK(with["at once"] == 2);
  CHECK(without["branch"] == 0);
  CHECK(without["at once"] == 0);
  CHECK(with["branch"] + with["compute"] == without["compute"]);
}

TEST_CASE(
    "cuda/fork: the race checker finds nothing, and finds the update that does not wait for the "
    "branch") {
  for (const char* net : {kNet, kNormNet}) {
    for (const bool in_backward : {true, false}) {
      CAPTURE(in_backward);
      CHECK(lines(cuda::shim::check_races(record(graph_settings(net, in_backward)))) == "");
    }
  }
  // All waits but the last are left out: that one still joins the branch before the capture ends,
  // but buckets before it are updated, and memory is used again, while their gradients may still be
  // under way.
  const auto early = [](int wait) { return wait < 2; };
  bool update = false;
  for (const Finding& finding :
       cuda::shim::check_races(record(graph_settings(kNormNet, true), early))) {
    update = update || (finding.kind == Finding::Kind::kRace &&
                        (finding.one == "conv2d_backward_weights") !=
                            (finding.other == "conv2d_backward_weights") &&
                        (finding.one == "update" || finding.other == "update"));
  }
  CHECK(update);
}

TEST_CASE(
    "cuda/fork: where a capture with the branch fails, it is captured without, in one line and "
    "with the same bits") {
  const nlohmann::json layers = nlohmann::json::parse(R"([
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}])");
  const nlohmann::json config = with(graph_config(7), {{"model", {{"layers", layers}}}});
  /// A device whose upload stream cannot take part in a capture.
  class Refusing final : public ForwardingBackend {
   public:
    using ForwardingBackend::ForwardingBackend;
    void wait(Event event) override {
      require(!capturing() || stream() != StreamKind::kUpload, "cuda",
              "this stream cannot be captured");
      ForwardingBackend::wait(event);
    }
  };
  const auto run = [&](bool refuses, std::vector<std::string>& said) {
    GraphOutcome outcome;
    said = stderr_lines([&] {
      cuda::CudaBackend gpu(0, false, false, true);
      Refusing refusing(gpu);
      outcome = run_alone({.config = config}, refuses ? static_cast<Backend&>(refusing) : gpu);
    });
    return outcome;
  };
  std::vector<std::string> said, nothing;
  const GraphOutcome refused = run(true, said), taken = run(false, nothing);
  REQUIRE(said.size() == 1);
  CHECK(
      said[0].find(
          "graphs get no branch for gradients of weights, because step 4 could not be captured") !=
      std::string::npos);
  CHECK(said[0].find("this stream cannot be captured") != std::string::npos);
  CHECK(nothing.empty());
  CHECK(refused.graphs == 1);
  CHECK(refused.why_not == "");
  CHECK(differences(refused, taken) == "");
}

}  // namespace starling::tests
