#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/bench/support.h"
#include "apps/training/tasks/training_pass.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/scheduler.h"
#include "core/autograd.h"
#include "core/backend.h"
#include "core/forwarding_backend.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

/// A backend that measures: with `profiling` the host waits for each operation and records its
/// time.
class ProfilingBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::map<std::string, double> seconds;
  bool profiling = false;

 protected:
  void around(std::string_view name, const std::function<void()>& operation) override {
    if (!profiling) return operation();
    inner().synchronize();
    seconds[std::string(name)] += seconds_of([&] {
      operation();
      inner().synchronize();
    });
  }
};

/// Training on one rank with a batch in device memory, for timing whole steps.
class BenchTraining {
 public:
  BenchTraining(const StepBench& settings, Backend& backend, DType compute);
  /// Issues a forward pass, a backward pass and the updates. Returns the loss.
  Tensor step();
  std::int64_t steps_done() const { return done_; }
  const OptimizerRule& rule() const { return *rule_; }

 private:
  /// Without scheduler and gossip (`plain`), on the compute stream.
  void update_all();

  Backend& backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<OptimizerRule> rule_;
  std::unique_ptr<Task> task_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::vector<UpdateLayers> layers_;  ///< of each bucket, if the rule measures layers
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Algorithm> algorithm_;
  std::unique_ptr<BucketScheduler> scheduler_;
  Tape tape_;
  Batch batch_;
  bool plain_;
  double loss_scale_;
  std::int64_t done_ = 0;
};

}  // namespace starling
