#include "tests/cudnn/stand_in.h"

#include <cstring>

#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/graph_on_cpu.h"

namespace starling::testing {

using cuda::GraphSpec;

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

namespace {

/// Bytes that a candidate asks for and fills, to show that it was given them.
std::size_t workspace_bytes(int candidate) { return static_cast<std::size_t>(candidate) * 64; }

class StandInPlan final : public cuda::GraphPlan {
 public:
  StandInPlan(StandIn& maker, const GraphSpec& spec, int candidates)
      : maker_(maker), spec_(spec), candidates_(candidates) {}
  int candidates() const override { return candidates_; }
  std::string name(int candidate) const override {
    return "candidate " + std::to_string(candidate);
  }
  bool finalise(int candidate, std::string& why) override {
    ++maker_.finalised;
    if (!maker_.cannot_finalise || !maker_.cannot_finalise(candidate)) return true;
    why = "cannot be finalised";
    return false;
  }
  std::size_t workspace(int candidate) const override { return workspace_bytes(candidate); }
  double milliseconds(cuda::StreamHandle, const std::function<void()>& work) override {
    work();
    return maker_.times.at(static_cast<std::size_t>(maker_.runs.back()));
  }

  void run(int candidate, const cuda::Bindings& bindings, void* workspace,
           cuda::StreamHandle) override {
    if (maker_.cannot_run && maker_.cannot_run(candidate))
      fail(ExitCode::kInternal, "cudnn", "cannot run");
    maker_.runs.push_back(candidate);
    if (workspace_bytes(candidate) != 0) std::memset(workspace, 0xff, workspace_bytes(candidate));
    cuda::shim::carry_out(spec_, bindings, cpu());
  }

 private:
  StandIn& maker_;
  GraphSpec spec_;
  int candidates_;
};

}  // namespace

std::unique_ptr<cuda::GraphPlan> StandIn::plan(const GraphSpec& spec,
                                               const cuda::PlanRules& rules_wanted,
                                               std::string& why) {
  ++planned[spec];
  rules = rules_wanted;
  const bool none = refuses && refuses(spec);
  if (none) why = "refused by the test";
  return std::make_unique<StandInPlan>(*this, spec, none ? 0 : candidates);
}

}  // namespace starling::testing
