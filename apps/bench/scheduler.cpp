#include "apps/bench/benches.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/bench/support.h"
#include "comm/algorithm.h"
#include "comm/mixers/messages.h"
#include "comm/scheduler.h"
#include "core/console.h"
#include "core/error.h"
#include "core/forwarding_backend.h"
#include "core/operations/updates.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {
namespace {

constexpr double kGoal = 20.0;                          // µs per step
constexpr std::int64_t kWarmUp = 50, kColdSteps = 100;  // steps
// bytes read between two steps to evict the caches
constexpr std::size_t kOtherMemory = std::size_t{64} * 1024 * 1024;

enum class Part : std::size_t { kBegin, kReady, kChoose, kWait, kUpdate, kStart, kEnd, kCount };
constexpr std::array<const char*, static_cast<std::size_t>(Part::kCount)> kPartNames{
    "begin", "ready", "bucket_ready", "wait", "update", "start", "end"};

/// Attributes time to the parts of a step: each call adds the time since the previous one to a
/// part.
class PartClock {
 public:
  using Clock = std::chrono::steady_clock;
  PartClock() {  // the overhead of reading the clock is subtracted
    std::vector<double> looks;
    for (int i = 0; i < 2000; ++i) {
      const Clock::time_point before = Clock::now();
      looks.push_back(std::chrono::duration<double>(Clock::now() - before).count());
    }
    look_ = median(looks);
  }
  void enable() { enabled_ = true; }
  void begin_step() {
    seconds_.fill(0.0);
    last_ = Clock::now();
  }
  void took(Part part) {
    if (!enabled_) return;
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<std::size_t>(part)] +=
        std::max(0.0, std::chrono::duration<double>(now - last_).count() - look_);
    last_ = Clock::now();
  }
  double seconds(std::size_t part) const { return seconds_[part]; }

 private:
  bool enabled_ = false;
  double look_ = 0.0;
  Clock::time_point last_;
  std::array<double, static_cast<std::size_t>(Part::kCount)> seconds_{};
};

/// A backend that does nothing. The first record() of an update marks the start of its issue.
class IdleBackend final : public ForwardingBackend {
 public:
  IdleBackend(Backend& inner, PartClock& clock) : ForwardingBackend(inner), clock_(clock) {}
  Event record() override {
    if (stream() == StreamKind::kCompute && !updating_) {
      clock_.took(Part::kChoose);
      updating_ = true;
    }
    return ForwardingBackend::record();
  }
  /// Attributes the time up to now: to an update's issue if one has begun, else to the algorithm's
  /// own decisions.
  void issued() {
    clock_.took(updating_ ? Part::kUpdate : Part::kChoose);
    updating_ = false;
  }
  void issue(const Update& args) override { inner().update(args); }

 private:
  PartClock& clock_;
  bool updating_ = false;
};

/// Rank 0 among `ranks`.
class IdleWorld final : public World {
 public:
  explicit IdleWorld(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  void barrier() override {}
  void broadcast(void*, std::size_t, int) override {}
  std::vector<std::string> all_gather(const std::string& mine) override {
    return std::vector<std::string>(static_cast<std::size_t>(ranks_), mine);
  }
  void sum(double*, std::size_t) override {}
  void max(double*, std::size_t) override {}

 private:
  int ranks_;
};

/// Reports its exchanges to the clock.
class IdleMixer final : public MessageMixer {
 public:
  IdleMixer(IdleBackend& backend, Transport& transport, PartClock& clock)
      : MessageMixer(backend, transport), idle_(backend), clock_(clock) {}
  Ticket start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
               std::vector<Tensor>& received, const ExchangeLabel& label) override {
    const Ticket ticket = MessageMixer::start(exchange, bucket, buffers, received, label);
    clock_.took(Part::kStart);
    return ticket;
  }
  void release(const ExchangeLabel&) override { idle_.issued(); }

 private:
  IdleBackend& idle_;
  PartClock& clock_;
};

/// Exchanges of rank 0 that complete immediately.
class IdleTransport final : public Transport {
 public:
  IdleTransport(int ranks, IdleBackend& backend, PartClock& clock)
      : Transport(world_), world_(ranks), backend_(backend), clock_(clock) {}
  std::string name() const override { return "idle"; }

  Ticket start_exchange(const Exchange&, const Tensor&, const std::vector<Tensor>&,
                        const ExchangeLabel&, std::shared_ptr<Flow>) override {
    return ++tickets_;
  }
  Ticket start_sum(const Tensor&, const Tensor&, const ExchangeLabel&,
                   std::shared_ptr<Flow>) override {
    clock_.took(Part::kStart);
    return ++tickets_;
  }
  bool done(Ticket ticket) override {
    backend_.issued();
    return ticket <= tickets_;
  }
  void wait(Ticket ticket) override {
    require(ticket <= tickets_, "transport", "ticket {} was never given", ticket);
    clock_.took(Part::kWait);
  }
  void prepare(const std::vector<std::vector<int>>&) override {}
  std::unique_ptr<Mixer> make_mixer(Backend&) override {
    return std::make_unique<IdleMixer>(backend_, *this, clock_);
  }
  std::string why_not_captured() const override { return through_the_host(*this); }
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }

 private:
  IdleWorld world_;
  IdleBackend& backend_;
  PartClock& clock_;
  Ticket tickets_ = 0;
};

/// Forwards calls, and reports to the clock where the scheduler ends and the algorithm begins.
class TimedAlgorithm final : public Algorithm {
 public:
  TimedAlgorithm(const AlgorithmSite& site, Algorithm& inner, IdleBackend& backend,
                 PartClock& clock)
      : Algorithm(site), inner_(inner), backend_(backend), clock_(clock) {}
  void begin(const StepInfo& info) override { inner_.begin(info); }
  void bucket_ready(int bucket) override {
    clock_.took(Part::kReady);
    inner_.bucket_ready(bucket);
    backend_.issued();
  }
  void backward_done() override {
    clock_.took(Part::kEnd);
    inner_.backward_done();
    clock_.took(Part::kEnd);
  }
  void finish() override { inner_.finish(); }
  void resume(std::int64_t step) override { inner_.resume(step); }

 private:
  Algorithm& inner_;
  IdleBackend& backend_;
  PartClock& clock_;
};

struct Cost {
  double step = 0.0, cold = 0.0;  ///< µs with warm and with cold caches
  std::array<double, static_cast<std::size_t>(Part::kCount)> parts{};
  double backend_requests = 0.0, heap_requests = 0.0;  ///< per step
  bool reached() const { return step <= kGoal; }
};

Cost cost_of(const std::string& name, const SchedulerBench& settings, const BucketPlan& plan,
             const std::vector<Parameter*>& order, const OptimizerRule& rule,
             const Topology& topology) {
  const std::unique_ptr<Backend> shapes = make_meta_backend();
  PartClock clock;
  IdleBackend backend(*shapes, clock);
  IdleTransport transport(settings.ranks, backend, clock);
  std::vector<Bucket> buckets = make_buckets(plan, backend, DType::kFloat32, rule, false);
  const std::unique_ptr<Mixer> mixer = transport.make_mixer(backend);
  const AlgorithmSite site{.backend = backend,
                           .transport = transport,
                           .mixer = *mixer,
                           .rule = rule,
                           .buckets = buckets,
                           .topology = &topology};
  const std::unique_ptr<Algorithm> algorithm = make_algorithm(algorithm_of(name), site);
  BucketScheduler plain(plan, buckets, *algorithm, false);
  std::int64_t t = 0;
  const auto run = [&](BucketScheduler& scheduler) {
    scheduler.begin_step({.step = t, .optimizer_step = t + 1, .lr = 1e-3});
    clock.took(Part::kBegin);
    for (Parameter* parameter : order) scheduler.ready(*parameter);
    clock.took(Part::kReady);
    scheduler.end_backward();
    ++t;
  };
  const auto timed = [&] {
    const auto begin = PartClock::Clock::now();
    run(plain);
    return 1e6 * std::chrono::duration<double>(PartClock::Clock::now() - begin).count();
  };

  Cost cost;
  std::vector<double> steps;
  steps.reserve(static_cast<std::size_t>(settings.steps));
  for (std::int64_t i = 0; i < kWarmUp; ++i) run(plain);
  const std::uint64_t backend_before = backend.memory_stats().allocations,
                      heap_before = heap_requests();
  for (std::int64_t i = 0; i < settings.steps; ++i) steps.push_back(timed());
  cost.heap_requests =
      static_cast<double>(heap_requests() - heap_before) / static_cast<double>(settings.steps);
  cost.backend_requests = static_cast<double>(backend.memory_stats().allocations - backend_before) /
                          static_cast<double>(settings.steps);
  cost.step = median(steps);

  // In a real step computation between two calls evicts the scheduler's data from the nearest
  // caches.
  std::vector<char> other(kOtherMemory, 1);
  steps.clear();
  for (std::int64_t i = 0; i < std::min(settings.steps, kColdSteps); ++i) {
    for (std::size_t k = 0; k < other.size(); k += 64) other[k] = static_cast<char>(other[k] + 1);
    steps.push_back(timed());
  }
  cost.cold = median(steps);

  TimedAlgorithm timed_algorithm(site, *algorithm, backend, clock);
  BucketScheduler scheduler(plan, buckets, timed_algorithm, false);
  clock.enable();
  std::array<std::vector<double>, static_cast<std::size_t>(Part::kCount)> parts;
  for (std::int64_t i = 0; i < settings.steps; ++i) {
    clock.begin_step();
    run(scheduler);
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].push_back(1e6 * clock.seconds(p));
  }
  for (std::size_t p = 0; p < parts.size(); ++p) cost.parts[p] = median(parts[p]);
  return cost;
}

}  // namespace

int bench_scheduler(const SchedulerBench& settings) {
  const std::unique_ptr<Model> model = bench_model(settings);
  const std::unique_ptr<OptimizerRule> rule = bench_rule(settings.optimizer);
  const std::unique_ptr<Topology> topology = bench_topology(settings.topology, settings.ranks);

  const ShapeTrace trace = trace_shapes(*bench_task(settings), *model, {.batch_size = 2});
  const BucketPlan plan =
      plan_buckets(trace.ready_order, {}, DType::kFloat32, settings.bucket_mb * 1024 * 1024);
  const std::array<const char*, 2> names{"gossip", "allreduce"};
  std::vector<Cost> costs;
  for (const char* name : names)
    costs.push_back(cost_of(name, settings, plan, trace.ready_order, *rule, *topology));

  const std::string topology_name = settings.topology.empty() ? "base-2" : settings.topology;
  if (settings.json) {
    nlohmann::json result{{"model", settings.model},
                          {"parameters", trace.ready_order.size()},
                          {"ranks", settings.ranks},
                          {"buckets", plan.buckets.size()},
                          {"topology", topology_name},
                          {"bucket_mb", settings.bucket_mb},
                          {"optimizer", settings.optimizer},
                          {"steps", settings.steps},
                          {"goal_us", kGoal}};
    for (std::size_t a = 0; a < names.size(); ++a) {
      const Cost& cost = costs[a];
      nlohmann::json& row = result[names[a]];
      row = {{"step_us", cost.step},
             {"after_other_memory_us", cost.cold},
             {"backend_allocations", cost.backend_requests},
             {"heap_allocations", cost.heap_requests},
             {"reached", cost.reached()}};
      for (std::size_t p = 0; p < kPartNames.size(); ++p)
        row["parts_us"][kPartNames[p]] = cost.parts[p];
    }
    answer("{}\n", result.dump());
    return 0;
  }

  answer(
      "{}: {} parameters in {} bucket{} of {:.6g} MiB, {} rank{}, {}, {}; operations and exchanges "
      "that do nothing\n",
      settings.model, trace.ready_order.size(), plan.buckets.size(),
      plan.buckets.size() == 1 ? "" : "s", settings.bucket_mb, settings.ranks,
      settings.ranks == 1 ? "" : "s", topology_name, settings.optimizer);
  answer("µs of host time a step, median of {}\n\n{:<34}{:>10}{:>11}\n", settings.steps, "",
         names[0], names[1]);
  const std::array<const char*, kPartNames.size()> titles{
      "begin_step",   "ready, of all parameters", "bucket_ready: what to do", "wait",
      "update issue", "start of exchanges",       "end of the pass"};
  for (std::size_t p = 0; p < titles.size(); ++p)
    answer("  {:<32}{:>10.2f}{:>11.2f}\n", titles[p], costs[0].parts[p], costs[1].parts[p]);
  answer("{:<34}{:>10.2f}{:>11.2f}   goal: at most {:.0f}\n", "whole step", costs[0].step,
         costs[1].step, kGoal);
  answer("{:<34}{:>10.2f}{:>11.2f}\n", "after 64 MiB of other memory", costs[0].cold,
         costs[1].cold);
  answer("{:<34}{:>10.6g}{:>11.6g}\n", "allocations a step, backend's", costs[0].backend_requests,
         costs[1].backend_requests);
  answer("{:<34}{:>10.6g}{:>11.6g}\n", "allocations a step, on the heap", costs[0].heap_requests,
         costs[1].heap_requests);
  for (std::size_t a = 0; a < names.size(); ++a)
    answer("{}: the goal is {}\n", names[a], costs[a].reached() ? "reached" : "missed");
  return 0;
}

}  // namespace starling
