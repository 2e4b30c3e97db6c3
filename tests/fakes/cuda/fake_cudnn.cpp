#include "tests/fakes/cuda/fake_cudnn.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/graph_on_cpu.h"
#include "tests/fakes/cuda/shim.h"

namespace starling::cuda::shim {
namespace {

/// Bytes that a candidate asks for and overwrites; the last one needs none.
std::size_t workspace_bytes(int candidate, int candidates) {
  return candidate + 1 < candidates ? 4096 : 0;
}

class FakePlan final : public GraphPlan {
 public:
  FakePlan(FakeGraphs& maker, std::shared_ptr<Backend> cpu, const GraphSpec& spec, int candidates)
      : maker_(maker), cpu_(std::move(cpu)), spec_(spec), candidates_(candidates) {}

  int candidates() const override { return candidates_; }
  std::string name(int candidate) const override { return "stand-in " + std::to_string(candidate); }
  bool finalise(int candidate, std::string& why) override {
    ++maker_.finalised;
    if (!maker_.cannot_finalise || !maker_.cannot_finalise(candidate)) return true;
    why = "cannot be finalised";
    return false;
  }
  std::size_t workspace(int candidate) const override {
    return workspace_bytes(candidate, candidates_);
  }

  void run(int candidate, const Bindings& bindings, void* workspace, StreamHandle stream) override {
    if (maker_.cannot_run && maker_.cannot_run(candidate))
      fail(ExitCode::kInternal, "cudnn", "cannot run");
    maker_.runs.push_back(candidate);
    launch_alone(
        stream,
        [spec = spec_, bindings, workspace, bytes = this->workspace(candidate), cpu = cpu_] {
          if (bytes > 0) std::memset(workspace, 0xff, bytes);
          carry_out(spec, bindings, *cpu);
        },
        "cudnn convolution");
  }

  double milliseconds(StreamHandle stream, const std::function<void()>& work) override {
    if (stream) host_wait_stream(stream);  // which a capture refuses, as it does on a GPU
    work();
    return maker_.times.at(static_cast<std::size_t>(maker_.runs.back()));
  }

 private:
  FakeGraphs& maker_;
  std::shared_ptr<Backend> cpu_;
  GraphSpec spec_;
  int candidates_;
};

}  // namespace

FakeGraphs::FakeGraphs() : cpu_(open_backend(DeviceType::kCpu, 1)) {}

std::unique_ptr<GraphPlan> FakeGraphs::plan(const GraphSpec& spec, const PlanRules& rules_wanted,
                                            std::string& why) {
  ++planned[spec];
  rules = rules_wanted;
  const bool none = refuses && refuses(spec);
  if (none) why = "refused by the test";
  return std::make_unique<FakePlan>(*this, cpu_, spec, none ? 0 : candidates);
}

}  // namespace starling::cuda::shim
