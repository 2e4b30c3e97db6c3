#include "apps/trainer/device/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <string_view>
#include <vector>

#include "apps/trainer/data/image_collate.h"
#include "comm/agreement.h"
#include "core/device_trace.h"
#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"

namespace starling {

namespace {

/// Updates that are skipped do not count for the rule, so its phase is another number than the
/// step's.
std::int64_t free_phases(const TrainConfig& config) {
  return config.compute == DType::kFloat16 ? config.rule->facts().phases : 1;
}

/// One for every step of a period, and what the micro-batches before the last need.
std::int64_t count_graphs(std::int64_t period, std::int64_t phases, std::int64_t accumulate,
                          bool two_buffers) {
  // The first one overwrites gradients, others add
  const std::int64_t before = std::min<std::int64_t>(accumulate - 1, 2);
  return period * phases + before * (two_buffers ? 2 : 1);
}

std::string too_many(std::int64_t period, std::int64_t graphs) {
  return fmt::format(
      "the work of steps comes again after {} of them, which would be {} graphs; at most {} are "
      "made",
      period, graphs, kMostGraphs);
}

/// An error's text without its component, on one line.
std::string text_of(const std::exception& error) {
  std::string text = message_of(error);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The lowest rank's reason; empty where none has one. Collective.
std::string lowest(const std::string& mine, World& world) {
  const auto reason = lowest_reason(world, mine);
  return reason ? reason->reason : std::string();
}

/// The reason that all ranks agree on, of reasons known before training; with "cuda_graphs": true
/// one is an error on every rank.
std::string agreed(const std::string& mine, GraphChoice choice, World& world) {
  const std::string why = lowest(mine, world);
  if (!why.empty() && choice == GraphChoice::kOn)
    fail_on_all_ranks(ExitCode::kUsage, "config", {.key = "cuda_graphs"},
                      "is true, but {}; allowed here: auto, false", why);
  return why;
}

}  // namespace

GraphPlan plan_graphs(const TrainConfig& config, const RankLayout& site) {
  GraphPlan plan;
  if (site.ranks > 1 && config.transport.through_host)
    plan.why_not = fmt::format("exchanges by {} pass through the host", config.transport.name);
  const Topology* topology = site.ranks > 1 ? config.topology.get() : nullptr;
  std::string never;
  plan.period =
      std::lcm(repeat_period(topology, *config.rule, 1, never), config.algorithm.steps.period);
  if (config.algorithm.steps.asynchronous)
    never = fmt::format("{} goes by the clock, not by steps", config.algorithm.label());
  else if (config.algorithm.steps.period == 0)
    never = fmt::format("{} does not say after how many steps its work repeats",
                        config.algorithm.label());
  if (!config.phases.empty()) never = "sync.switch changes what steps do";
  if (!config.groups.empty())
    never = "groups of parameters have rates of their own (optimizer.groups)";
  if (config.lookahead)
    never = "the model goes back towards slow numbers after some steps only (lookahead)";
  if (images_of(config.data).growth) never = "training images grow (data.progressive)";
  if (config.synchronized_norms)
    never = "batch norms wait for all ranks' statistics (sync.batch_norm)";
  if (config.check_numbers) never = "the host looks at every number (check_numbers)";
  if (plan.why_not.empty()) plan.why_not = never;
  if (plan.why_not.empty() && topology && free_phases(config) > 1) {
    plan.why_not =
        "in fp16 the steps of an accumulating rule differ from rank to rank once one has "
        "overflowed";
  }
  if (plan.period == 0) return plan;
  plan.graphs = count_graphs(plan.period, free_phases(config), config.accumulate, false);
  if (plan.why_not.empty() && plan.graphs > kMostGraphs)
    plan.why_not = too_many(plan.period, plan.graphs);
  return plan;
}

std::string graph_text(const TrainConfig& config, const RankLayout& site) {
  if (config.cuda_graphs == GraphChoice::kOff)
    return "graphs: none, because cuda_graphs is false\n";
  if (site.ranks > 1 && config.auto_topology)
    return "graphs: as the topology allows, which is chosen at the start\n";
  const GraphPlan plan = plan_graphs(config, site);
  if (!plan.why_not.empty()) return fmt::format("graphs: none, because {}\n", plan.why_not);
  const auto times = [](std::int64_t period) {
    return period == 1 ? std::string("each") : std::to_string(period);
  };
  std::string text =
      fmt::format("graphs: {}, each of one micro-batch; the work of steps comes again after {}",
                  plan.graphs, times(plan.period));
  if (site.ranks == 1) return text + "\n";
  const std::int64_t by_peers = std::lcm<std::int64_t>(plan.period, 2);
  const std::int64_t graphs =
      config.topology ? count_graphs(by_peers, free_phases(config), config.accumulate, true)
                      : plan.graphs;
  if (graphs != plan.graphs)
    text +=
        fmt::format("; {}, and {}, where ranks read each other's memory", graphs, times(by_peers));
  return text + "; none where exchanges pass through the host\n";
}

std::string agree_on_graphs(const TrainConfig& config, const RankLayout& site, Backend& backend,
                            Transport& transport) {
  if (config.cuda_graphs == GraphChoice::kOff || backend.device() != DeviceType::kCuda) return {};
  std::string why = transport.size() > 1 ? transport.why_not_captured() : std::string();
  if (why.empty()) why = plan_graphs(config, site).why_not;
  return agreed(why, config.cuda_graphs, transport);
}

StepGraphs::StepGraphs(const TrainConfig& config, const RankLayout& site, Backend& backend,
                       Transport& transport)
    : choice_(config.cuda_graphs),
      backend_(backend),
      transport_(transport),
      accumulate_(config.accumulate),
      rule_phases_(free_phases(config)) {
  if (choice_ == GraphChoice::kOff) return;
  if (backend.device() != DeviceType::kCuda) {
    if (choice_ == GraphChoice::kOn) say("the device is no GPU");
    return;
  }
  const std::string why = agree_on_graphs(config, site, backend, transport);
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
  two_buffers_ = std::any_of(buckets.begin(), buckets.end(),
                             [](const Bucket& bucket) { return static_cast<bool>(bucket.spare); });
  // A rank without neighbours on its host may have one buffer; all capture in the same steps
  if (transport_.size() > 1) {
    double most[3] = {static_cast<double>(period_), two_buffers_ ? 1.0 : 0.0,
                      tape.may_fork() ? 0.0 : 1.0};
    transport_.world().max(most, 3);
    if (period_ > 0) period_ = static_cast<std::int64_t>(most[0]);
    two_buffers_ = most[1] > 0.0;
    tape.set_may_fork(most[2] == 0.0);  // all ranks try again where a capture with a branch fails
  }
  if (period_ <= 0) {
    if (why.empty()) why = "the algorithm's work never repeats";
  } else {
    const std::int64_t graphs = count_graphs(period_, rule_phases_, accumulate_, two_buffers_);
    if (graphs > kMostGraphs) why = too_many(period_, graphs);
  }
  why = agreed(why, choice_, transport_);
  if (!why.empty()) give_up(why);
}

std::int64_t StepGraphs::warm_up_steps() const { return std::max<std::int64_t>(period_, 2) + 1; }

StepGraphs::Key StepGraphs::key_of(const MicroBatch& micro, const StepInfo& info) const {
  if (!micro.last) return {micro.first, false, two_buffers_ ? info.step % 2 : 0, 0};
  return {micro.first, true, info.step % period_, info.optimizer_step % rule_phases_};
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
    tape_->take_forked();
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
  // It may be the branch that the runtime or a library refuses. The rank that failed may not have
  // come to it.
  if (!why.empty() && !lowest(tape_->take_forked() ? "forked" : "", transport_).empty()) {
    tape_->set_may_fork(false);
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
