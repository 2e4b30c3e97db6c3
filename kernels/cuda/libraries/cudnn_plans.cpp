#include "kernels/cuda/libraries/cudnn_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace starling::cuda {

namespace {

constexpr int kFailures = 3;        ///< of one graph's candidates in a row, with one status: more would fail likewise
constexpr double kPatience = 10.0;  ///< seconds for one graph whose candidates fail
constexpr int kTimed = 8;           ///< candidates that `cudnn_benchmark` runs at most; the heuristics put the best first
constexpr int kTimings = 3;
constexpr double kSlow = 3.0;  ///< times the best: no further run
/// A candidate's first run loads its kernels, which the device's clock sees as well.
constexpr double kLoadingMs = 25.0;

/// cuDNN's status in a message, or all of the message.
std::string_view status_of(std::string_view message) {
  const std::size_t begin = message.find("CUDNN_STATUS_");
  if (begin == std::string_view::npos) return message;
  const std::size_t end = message.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", begin);
  return message.substr(begin, end == std::string_view::npos ? end : end - begin);
}

/// Counts what fails while a graph's candidates are tried.
class Failures {
 public:
  /// `compiled`: at run time. An engine from the library that does not take a graph says so at once, and nothing about the others.
  explicit Failures(bool compiled) : compiled_(compiled) {}
  void add(const std::string& why) {
    const std::string_view status = status_of(why);
    if (!compiled_ && status.starts_with("CUDNN_STATUS_NOT_SUPPORTED")) return;
    count_ = status == status_ ? count_ + 1 : 1;
    status_ = status;
  }
  bool enough() const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    return count_ >= kFailures || (count_ > 0 && spent.count() > kPatience);
  }

 private:
  bool compiled_;
  int count_ = 0;
  std::string status_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The smallest usual graph that cuDNN compiles.
GraphSpec compiler_probe() {
  GraphSpec spec{.kind = GraphKind::kBatchNorm, .dtype = DType::kFloat32, .x = {8, 8, 8, 64}, .y = {8, 8, 8, 64}, .eps = 1e-5f};
  spec.relu = true;
  return spec;
}

}  // namespace

CudnnPlans::CudnnPlans(const LibrarySettings& settings, WorkspaceSource& workspaces, std::unique_ptr<GraphMaker> maker)
    : settings_(settings), workspaces_(workspaces), maker_(std::move(maker)) {
  const char* compiled = std::getenv("STARLING_CUDNN_COMPILED");
  if (compiled && std::string_view(compiled) == "0") compiler_ = Compiler::kMissing;
}

CudnnPlans::Entry* CudnnPlans::find(const GraphSpec& spec) {
  if (compiler_ == Compiler::kMissing && compiled_at_run_time(spec)) return nullptr;
  const auto [at, fresh] = entries_.try_emplace(spec);
  Entry& entry = at->second;
  if (fresh) prepare(spec, entry);
  return entry.plan ? &entry : nullptr;
}

void CudnnPlans::prepare(const GraphSpec& spec, Entry& entry) {
  entry.spec = spec;
  const bool compiled = compiled_at_run_time(spec);
  std::string why;
  entry.plan = maker_->plan(spec, rules(), why);
  const int candidates = entry.plan->candidates();
  Failures failures(compiled);
  for (int i = 0; i < candidates && entry.chosen < 0 && !failures.enough(); ++i) {
    if (entry.plan->finalise(i, why)) {
      entry.chosen = i;
    } else {
      failures.add(why);
    }
  }
  if (entry.chosen >= 0) {
    if (compiled) compiler_ = Compiler::kWorks;
    entry.workspace = entry.plan->workspace(entry.chosen);
    return;
  }
  entry.plan.reset();
  if (compiled && candidates > 0 && !compiler_works(why)) return;  // which it has told
  const bool in_parts = spec.kind == GraphKind::kConvolutionBias || is_fused(spec.kind);
  log::write(in_parts ? log::Level::kDebug : log::Level::kWarning,
             fmt::format("[cudnn] {}: no engine ({}); {}", text(spec), why, in_parts ? "it runs in parts" : "an own kernel does it"));
}

/// After a graph could not be compiled, for the reason `why`: whether that is the graph's fault. The smallest graph tells, so that nothing
/// is compiled for the answer's sake where all is well.
bool CudnnPlans::compiler_works(const std::string& why) {
  if (compiler_ != Compiler::kUntried) return true;
  std::string reason;
  const auto plan = maker_->plan(compiler_probe(), rules(), reason);
  for (int i = 0; i < std::min(plan->candidates(), kFailures) && compiler_ == Compiler::kUntried; ++i) {
    if (plan->finalise(i, reason)) compiler_ = Compiler::kWorks;
    if (status_of(reason) == status_of(why)) break;  // as before
  }
  if (compiler_ == Compiler::kWorks) return true;
  compiler_ = Compiler::kMissing;
  log::write(
      log::Level::kWarning,
      fmt::format("[cudnn] nothing can be compiled at run time ({}): own kernels do batch norms and add biases in low precision, "
                  "convolutions stay with cuDNN; libnvrtc of the CUDA release that cuDNN is for, with its libnvrtc-builtins, must be "
                  "on the library path, and all libcudnn*.so of one version",
                  why));
  return false;
}

void CudnnPlans::run(Entry& entry, const Bindings& bindings, StreamHandle stream) {
  // Each candidate that is compiled takes most of a second: those are not compared.
  if (settings_.benchmark && !entry.timed && !compiled_at_run_time(entry.spec)) choose(entry, bindings, stream);
  issue(entry, entry.chosen, entry.workspace, bindings, stream);
}

void CudnnPlans::issue(Entry& entry, int candidate, std::size_t bytes, const Bindings& bindings, StreamHandle stream) {
  const std::shared_ptr<Storage> workspace = bytes == 0 ? nullptr : workspaces_.workspace(bytes);
  entry.plan->run(candidate, bindings, workspace ? workspace->data() : nullptr, stream);
}

/// Times the first candidates on the call's own tensors, whose output is written again afterwards, and keeps the fastest. One that is far
/// behind is dropped after its first run, or after its first without loading.
void CudnnPlans::choose(Entry& entry, const Bindings& bindings, StreamHandle stream) {
  entry.timed = true;
  double best = 0.0;
  const int first = entry.chosen;
  Failures failures(false);
  int tried = 0;
  for (int i = first; i < entry.plan->candidates() && tried < kTimed && !failures.enough(); ++i) {
    std::string why;
    if (i != first && !entry.plan->finalise(i, why)) {
      failures.add(why);
      continue;
    }
    ++tried;
    const std::size_t bytes = entry.plan->workspace(i);
    const auto timed = [&] { return entry.plan->milliseconds(stream, [&] { issue(entry, i, bytes, bindings, stream); }); };
    std::array<double, kTimings> times{};
    try {
      if (timed() > kSlow * best + kLoadingMs && i != first) continue;
      times[0] = timed();
      if (i != first && times[0] > kSlow * best) continue;
      for (int k = 1; k < kTimings; ++k) times[static_cast<std::size_t>(k)] = timed();
    } catch (const Error& error) {
      if (i == first) throw;
      log::write(log::Level::kDebug, fmt::format("[cudnn] {}: {} left out: {}", text(entry.spec), entry.plan->name(i), error.what()));
      continue;
    }
    std::sort(times.begin(), times.end());
    if (i != first && times[kTimings / 2] >= best) continue;
    best = times[kTimings / 2];
    entry.chosen = i;
    entry.workspace = bytes;
  }
  log::write(log::Level::kDebug, fmt::format("[cudnn] {}: {}, the fastest of {} out of {} candidates, takes {:.3f} ms", text(entry.spec),
                                             entry.plan->name(entry.chosen), tried, entry.plan->candidates(), best));
}

bool CudnnPlans::fuses() {
  if (fuses_) return *fuses_;
  fuses_ = true;
  for (const GraphSpec& spec : fusion_probes()) {
    std::string why;
    if (maker_->plan(spec, rules(), why)->candidates() > 0) continue;
    log::write(log::Level::kDebug, fmt::format("[cudnn] batch norms stay apart from convolutions: {}: no engine ({})", text(spec), why));
    fuses_ = false;
    break;
  }
  return *fuses_;
}

}  // namespace starling::cuda
