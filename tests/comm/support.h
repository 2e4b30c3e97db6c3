#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/algorithm.h"
#include "comm/averaging.h"
#include "comm/bucket.h"
#include "comm/transport.h"
#include "core/parameter.h"
#include "tests/support/errors.h"
#include "topology/topology.h"

namespace starling::test {

/// Parameters of odd shapes, named p0, p1, …; `order` is the order in which their gradients become
/// ready (reversed).
struct TinyModel {
  explicit TinyModel(const std::vector<Shape>& shapes);
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> order;
};

/// A switch: from step `step` on another algorithm trains (algorithms.md, section 6).
struct Switch {
  int step = 0;
  nlohmann::json algorithm;
  nlohmann::json topology = {};  ///< null: the one before
};

/// A run on quadratics: rank i's loss is Σ (1 + p/4)/2 (x - target_i)², with targets that differ by
/// rank and element.
struct Job {
  nlohmann::json algorithm = "gossip";  ///< as `sync.algorithm`
  nlohmann::json topology = {{"type", "ring"}};
  nlohmann::json optimizer = {{"type", "sgd"}};
  DType dtype = DType::kFloat32;
  int steps = 6;
  double lr = 0.1;
  std::function<double(int)> lr_at = {};  ///< instead, of a step
  /// Rank i's curvature is (1 + i times this) times as large
  double rank_curvature = 0.0;
  double bucket_bytes = 600;
  bool in_backward = true, overlap = true;
  ClipSettings clip;
  bool start_apart = false;  ///< ranks start from different numbers
  int finish_every = 0;      ///< finish() and a mean model after so many steps
  int resume_after = 0;      ///< a new algorithm resumes from the saved numbers after so many steps
  int slow_rank = -1;        ///< sleeps in its backward pass
  double loss_scale = 1.0;   ///< the gradients hold it; halved by a rank after a skipped step
  bool check_overflow = false;
  std::string exchange = "fp32";              ///< `sync.exchange`
  std::vector<Switch> switches = {};          ///< `sync.switch`: for the plain rewriting alone
  std::vector<std::array<int, 2>> overflows;  ///< {rank, step}: there one gradient is infinite
  /// bf16 or fp16: the buckets have a low-precision copy, compared at the end
  DType compute = DType::kFloat32;
  /// Called with rank and step, on the rank's own thread
  std::function<void(int, int, const std::vector<Bucket>&)> after_step = {};
  /// Called with rank, step, the steps that the rank leaves out after it and what ranks agreed on
  std::function<void(int, int, std::int64_t, const std::vector<Algorithm::Meeting>&)>
      after_meetings = {};
  /// Push-sum as it is not: ω is 1 in every step; for the plain rewriting alone
  bool reset_omega = false;
  int ready_shuffle = 0;  ///< another order of readiness than the traced one
  /// Ranks that are one replica. They have the gradients of rank I of a run without replicas, the
  /// k-th of R with (k - (R-1)/2) times `apart_in_replica` more.
  int replica = 1;
  bool exchanging = false;  ///< whose ranks do not share memory
  double apart_in_replica = 0.0;
};

/// One in fp64.
Job exact_job(const nlohmann::json& algorithm, const nlohmann::json& topology,
              const nlohmann::json& optimizer);

/// This rank's parameters after the run, in the model's order; `way` becomes the mixer's name.
std::vector<double> run_job(const Job& job, Transport& transport, Backend& backend,
                            std::string* way = nullptr);
/// All ranks on a fake world.
struct FakeRun {
  double most_delay_seconds = 0.0;
  std::uint64_t seed = 0;
  bool direct = false;
  int ranks_per_host = 0;
  int refuse = -1;
  int threads = 1;
};
std::vector<std::vector<double>> run_fake(const Job& job, int ranks, const FakeRun& fake = {});
/// Empty where no way to run the job has other numbers than `expected`, one rank's after the
/// other's: with delays, direct reads, threads, updates after the backward pass, without overlap,
/// with evaluations and resumes; and where `any_buckets` with other buckets. All that names no
/// world of its own runs in `fake`.
std::string ways_that_change_bits(const Job& job, const std::vector<std::vector<double>>& expected,
                                  bool any_buckets, const FakeRun& fake = {});

std::unique_ptr<Topology> make_test_topology(const nlohmann::json& config, int ranks,
                                             TopologyKind kind = TopologyKind::kDoublyStochastic);
/// The job's model and losses, for plain rewritings.
const std::vector<Shape>& job_shapes();
double start_value(int rank, bool apart, std::int64_t i);
double target(int rank, std::int64_t i);
double curvature(std::size_t parameter);

std::vector<double> numbers(const Tensor& tensor);
void set_numbers(const Tensor& tensor, const std::function<double(std::int64_t)>& value);

}  // namespace starling::test
