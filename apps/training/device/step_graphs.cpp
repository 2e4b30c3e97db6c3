#include "apps/training/device/step_graphs.h"

#include <fmt/format.h>

#include <exception>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/device_trace.h"
#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"

namespace starling {
namespace {

/// An error's text without its component, on one line.
std::string text_of(const std::exception& error) {
  std::string text = message_of(error);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// The lowest rank's reason; empty where none has one. Collective.
std::string lowest(const std::string& mine, World& world) {
  const auto reason = lowest_reason(world, mine);
  return reason ? reason->reason : std::string();
}

/// The reason that ranks agree on before training; with "cuda_graphs": true it is an error.
std::string agreed(const std::string& mine, GraphChoice choice, World& world) {
  const std::string why = lowest(mine, world);
  if (!why.empty() && choice == GraphChoice::kOn)
    fail_on_all_ranks(ExitCode::kUsage, "config", {.key = "cuda_graphs"},
                      "is true, but {}; allowed here: auto, false", why);
  return why;
}

}  // namespace

std::int64_t GraphPlan::count(std::int64_t of, bool two_buffers) const {
  // The first one overwrites gradients, others add
  const std::int64_t before = std::min<std::int64_t>(accumulate - 1, 2);
  return of * rule_phases + before * (two_buffers ? 2 : 1);
}

std::string GraphPlan::too_many(std::int64_t of, bool two_buffers) const {
  const std::int64_t needed = count(of, two_buffers);
  if (needed <= kMostGraphs) return {};
  return fmt::format(
      "the work of steps comes again after {} of them, which would be {} graphs; at most {} are "
      "made",
      of, needed, kMostGraphs);
}

std::string agree_on_graphs(const GraphPlan& plan, Backend& backend, Transport& transport) {
  if (plan.choice == GraphChoice::kOff || backend.device() != DeviceType::kCuda) return {};
  std::string why = transport.size() > 1 ? transport.why_not_captured() : std::string();
  if (why.empty()) why = plan.why_not;
  return agreed(why, plan.choice, transport);
}

StepGraphs::StepGraphs(GraphPlan plan, Backend& backend, Transport& transport)
    : plan_(std::move(plan)), backend_(backend), transport_(transport) {
  if (plan_.choice == GraphChoice::kOff) return;
  if (backend.device() != DeviceType::kCuda) {
    if (plan_.choice == GraphChoice::kOn) say("the device is no GPU");
    return;
  }
  const std::string why = agree_on_graphs(plan_, backend, transport);
  if (!why.empty()) {
    say(why);
    return;
  }
  on_ = start_at_begin_ = true;
}

void StepGraphs::attach(Algorithm& algorithm, Mixer& mixer, Tape& tape,
                        std::vector<Bucket>& buckets) {
  mixer_ = &mixer;
  buckets_ = &buckets;
  tape_ = &tape;
  if (!on_) return;
  std::string why;
  period_ = algorithm.graph_period(why);
  two_buffers_ = std::ranges::any_of(
      buckets, [](const Bucket& bucket) { return static_cast<bool>(bucket.spare); });
  // A rank without neighbours on its host may have one buffer; all capture in the same steps
  if (transport_.size() > 1) {
    double most[3] = {static_cast<double>(period_), two_buffers_ ? 1.0 : 0.0,
                      tape.branches().allowed() ? 0.0 : 1.0};
    transport_.world().max(most, 3);
    if (period_ > 0) period_ = static_cast<std::int64_t>(most[0]);
    two_buffers_ = most[1] > 0.0;
    tape.branches().allow(most[2] ==
                          0.0);  // all ranks try again where a capture with a branch fails
  }
  if (period_ <= 0) {
    if (why.empty()) why = "the algorithm's work never repeats";
  } else {
    if (const std::string many = plan_.too_many(period_, two_buffers_); !many.empty()) why = many;
  }
  why = agreed(why, plan_.choice, transport_);
  if (!why.empty()) give_up(why);
}

StepGraphs::Key StepGraphs::key_of(const MicroBatch& micro, const StepInfo& info) const {
  if (!micro.last) return {micro.first, false, two_buffers_ ? info.step % 2 : 0, 0};
  return {micro.first, true, info.step % period_, info.optimizer_step % plan_.rule_phases};
}

Tensor StepGraphs::run(const MicroBatch& micro, const StepInfo& info, std::uint64_t dropout_counter,
                       const Work& work) {
  const bool issue = !on_ || steps_ < warm_up_steps();
  steps_ += micro.last;
  if (issue) return work();
  const StepValues values{info.step, info.lr, info.optimizer_step, info.loss_scale,
                          dropout_counter};
  Captured& captured = graphs_[key_of(micro, info)];
  if (!captured.capture && !capture(captured, values, work)) return work();
  const TraceSpan span("replay");
  const DeviceSpan device_span(TraceLane::kDeviceCompute, "replay");
  captured.capture->launch(values);
  return captured.loss;
}

bool StepGraphs::capture(Captured& captured, const StepValues& values, const Work& work) {
  const TraceSpan span("capture");
  const auto attempt = [&] {
    tape_->branches().take_used();
    std::string why = try_capture(captured, values, work);
    if (!why.empty()) {
      const std::string where =
          transport_.size() > 1 ? fmt::format(" on rank {}", transport_.rank()) : std::string();
      why = fmt::format("step {} could not be captured{}: {}", values.pass + 1, where, why);
    }
    why = lowest(why, transport_);
    if (why.empty()) return why;
    captured = {};
    tape_->clear();
    return why;
  };
  std::string why = attempt();
  // The branch may be what is refused; the rank that failed may not have come to it.
  if (!why.empty() && !lowest(tape_->branches().take_used() ? "forked" : "", transport_).empty()) {
    tape_->branches().allow(false);
    if (transport_.rank() == 0)
      log::info("graphs get no branch for gradients of weights, because {}", why);
    why = attempt();
  }
  if (why.empty()) return true;
  give_up(why);
  return false;
}

std::string StepGraphs::try_capture(Captured& captured, const StepValues& values,
                                    const Work& work) {
  try {
    captured.capture = Capture::begin(backend_, transport_, mixer_, *buckets_, values);
    if (!captured.capture) return "this device has no graphs";
    captured.loss = work();
    captured.capture->end();
    return {};
  } catch (const Error& error) {
    captured.capture.reset();
    // What is wrong with the model, or lost, is so without a graph too.
    if (error.code() != ExitCode::kInternal && error.code() != ExitCode::kMemory) throw;
    return text_of(error);
  } catch (const std::exception& error) {
    captured.capture.reset();
    return text_of(error);
  }
}

void StepGraphs::give_up(const std::string& why) {
  on_ = false;
  graphs_.clear();
  say(why);
}

void StepGraphs::say(const std::string& why) {
  why_not_ = why;
  if (transport_.rank() == 0) log::info("steps run without CUDA graphs, because {}", why);
}

}  // namespace starling
