// For tests: an algorithm that does as another one does, until on one rank, in one step, something goes wrong:
// {"type": "faulty", "inner": "allreduce", "fault": "null", "rank": 1, "at": 5}.
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "comm/algorithm.h"
#include "core/config.h"
#include "core/error.h"

namespace faulty {

using namespace starling;

struct Fault {
  std::string kind;
  int rank = 0;
  std::int64_t at = 0;
};

// A name of its own, to be looked for in the stack.
__attribute__((noinline)) void write_to_nowhere(volatile int* place) { *place = 1; }

[[gnu::noinline]] void throw_where_nobody_catches() noexcept { throw std::runtime_error("nobody catches this"); }

class Faulty final : public Algorithm {
 public:
  Faulty(const AlgorithmSite& site, std::unique_ptr<Algorithm> inner, Fault fault)
      : Algorithm(site), inner_(std::move(inner)), fault_(std::move(fault)) {}
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
  void conclude() override { inner_->conclude(); }
  void resume(std::int64_t step) override { inner_->resume(step); }
  Tensor control() const override { return inner_->control(); }
  double mean_weight() const override { return inner_->mean_weight(); }
  double take_wait_seconds() override { return inner_->take_wait_seconds(); }

 private:
  void go_wrong(const StepInfo& info) {
    if (fault_.kind == "null") write_to_nowhere(nullptr);
    if (fault_.kind == "terminate") throw_where_nobody_catches();
    if (fault_.kind == "error") fail(ExitCode::kOutput, "faulty", "the disk of rank {} is full", fault_.rank);
    if (fault_.kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (fault_.kind == "call") site_.transport.world().barrier();
    if (fault_.kind == "order") {
      const Tensor& numbers = site_.buckets[0].gradients;
      site_.transport.wait(
          site_.transport.start_sum(numbers, Tensor(site_.backend, numbers.shape(), numbers.dtype()), {info.step, 7, info.step}));
    }
  }
  std::unique_ptr<Algorithm> inner_;
  Fault fault_;
  bool hit_ = false;
};

AlgorithmPlan plan(ConfigSection& config) {
  const std::string inner = config.text("inner", "allreduce", "what it does otherwise");
  Fault fault;
  fault.kind = config.choice("fault", "none", {"none", "null", "terminate", "error", "hang", "call", "order", "bit"}, "what goes wrong");
  fault.rank = static_cast<int>(config.integer("rank", 0, Range::closed(0, 1e6), "where"));
  fault.at = config.integer("at", 5, Range::closed(0, 1e9), "in which step");
  AlgorithmPlan made = algorithms().make(inner, "sync.algorithm.inner", config);
  made.title = inner;
  made.make = [make = made.make, fault](const AlgorithmSite& site) -> std::unique_ptr<Algorithm> {
    return std::make_unique<Faulty>(site, make(site), fault);
  };
  return made;
}

}  // namespace faulty

extern "C" void starling_register_plugin() { starling::algorithms().add("faulty", faulty::plan, "for tests"); }
