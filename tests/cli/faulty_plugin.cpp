// For tests: an algorithm that does as another one does, until on one rank, in one step, something
// goes wrong: {"type": "faulty", "as": "allreduce", "fault": "null", "rank": 1, "at": 5}. With
// FAULTY=off in the environment nothing does.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <starling/algorithm.h>
#include <starling/transport.h>

namespace faulty {

using namespace starling;

struct Fault {
  std::string kind;
  int rank = 0;
  std::int64_t at = 0;
};

// A name of its own, to be looked for in the stack.
__attribute__((noinline)) void write_to_nowhere(volatile int* place) { *place = 1; }

[[gnu::noinline]] void throw_where_nobody_catches() noexcept {
  throw std::runtime_error("nobody catches this");
}

/// In one step this rank's process ends at so many sums over all ranks: before the first, so that
/// the others wait for all of an average, or before the second, in its midst.
class MortalTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void end_at(int sum) { sums_left_ = sum; }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    if (sums_left_ > 0 && --sums_left_ == 0) std::raise(SIGKILL);
    return ForwardingTransport::start_sum(in, out, label, std::move(flow));
  }

 private:
  int sums_left_ = 0;
};

class Faulty final : public Algorithm {
 public:
  using Make = std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)>;
  Faulty(const AlgorithmSite& site, const Make& make, Fault fault)
      : Algorithm(site), mortal_(site.transport), fault_(std::move(fault)) {
    inner_ = make({.backend = site.backend,
                   .transport = mortal_,
                   .mixer = site.mixer,
                   .rule = site.rule,
                   .buckets = site.buckets,
                   .topology = site.topology,
                   .clip = site.clip,
                   .in_backward = site.in_backward,
                   .overlap = site.overlap,
                   .check_overflow = site.check_overflow,
                   .start_at_begin = site.start_at_begin,
                   .groups = site.groups,
                   .after_update = site.after_update});
  }
  void begin(const StepInfo& info) override {
    hit_ = info.step == fault_.at && site_.transport.rank() == fault_.rank;
    inner_->begin(info);
    if (hit_) go_wrong(info);
  }
  void bucket_ready(int bucket) override { inner_->bucket_ready(bucket); }
  void backward_done() override {
    inner_->backward_done();
    if (!hit_ || fault_.kind != "bit") return;
    inner_->finish();
    auto* bits = reinterpret_cast<std::uint32_t*>(site_.buckets[0].parameters.raw());
    bits[3] ^= 1u << 21;
  }
  void finish() override { inner_->finish(); }
  void conclude() override {
    const bool here = site_.transport.rank() == fault_.rank;
    if (here && fault_.kind == "kill_before_conclude") std::raise(SIGKILL);
    inner_->conclude();
    if (here && fault_.kind == "kill_after_conclude") std::raise(SIGKILL);
  }
  void resume(std::int64_t step) override { inner_->resume(step); }
  Tensor control() const override { return inner_->control(); }
  double mean_weight() const override { return inner_->mean_weight(); }
  double take_wait_seconds() override { return inner_->take_wait_seconds(); }

 private:
  void go_wrong(const StepInfo& info) {
    if (fault_.kind == "kill") std::raise(SIGKILL);
    if (fault_.kind == "kill_before_average") mortal_.end_at(1);
    if (fault_.kind == "kill_in_average") mortal_.end_at(2);
    if (fault_.kind == "null") write_to_nowhere(nullptr);
    if (fault_.kind == "terminate") throw_where_nobody_catches();
    if (fault_.kind == "error")
      fail(ExitCode::kOutput, "faulty", "the disk of rank {} is full", fault_.rank);
    if (fault_.kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault_.kind == "call") site_.transport.world().barrier();
    if (fault_.kind == "order") {
      const Tensor& numbers = site_.buckets[0].gradients;
      site_.transport.wait(site_.transport.start_sum(
          numbers, Tensor(site_.backend, numbers.shape(), numbers.dtype()),
          {info.step, 7, info.step}));
    }
  }
  MortalTransport mortal_;
  std::unique_ptr<Algorithm> inner_;
  Fault fault_;
  bool hit_ = false;
};

AlgorithmPlan plan(ConfigSection& config) {
  const std::string inner = config.text("as", "allreduce", "what it does otherwise");
  Fault fault;
  fault.kind = config.choice(
      "fault", "none",
      {"none", "null", "terminate", "error", "hang", "call", "order", "bit", "kill",
       "kill_before_average", "kill_in_average", "kill_before_conclude", "kill_after_conclude"},
      "what goes wrong");
  const char* off = std::getenv("FAULTY");
  if (off && std::string(off) == "off") fault.kind = "none";
  fault.rank = static_cast<int>(config.integer("rank", 0, Range::closed(0, 1e6), "where"));
  fault.at = config.integer("at", 5, Range::closed(0, 1e9), "in which step");
  AlgorithmPlan made = algorithms().make(inner, "sync.algorithm.as", config);
  made.title = inner;
  made.make = [make = made.make, fault](const AlgorithmSite& site) -> std::unique_ptr<Algorithm> {
    return std::make_unique<Faulty>(site, make, fault);
  };
  return made;
}

}  // namespace faulty

extern "C" void starling_register_plugin() {
  starling::algorithms().add("faulty", faulty::plan, "for tests");
}
