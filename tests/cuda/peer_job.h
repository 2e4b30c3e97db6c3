#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/plugins.h"
#include "comm/algorithm.h"
#include "comm/bucket.h"
#include "comm/shared/peer_transport.h"
#include "comm/transports/staged.h"
#include "core/config.h"
#include "core/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/optimizer.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/fakes/transport/thread_sharing.h"
#include "topology/topology.h"

// Gossip on a few small buckets, step by step or as graphs, among ranks that are threads with a GPU
// of the shim's each.
namespace starling::tests {

struct PeerJobSettings {
  nlohmann::json topology = {{"type", "ring"}};
  int steps = 9;
  /// Steps are captured and replayed, once a period and one more have been done
  bool graphs = false;
  bool start_at_begin = false;  ///< as with graphs
};

class PeerJob {
 public:
  PeerJob(Backend& backend, Transport& transport, const PeerJobSettings& settings)
      : backend_(backend), transport_(transport), settings_(settings) {
    register_builtins();
    for (const Shape& shape : {Shape{7, 5}, Shape{33}, Shape{6, 3, 3, 2}, Shape{100}}) {
      auto parameter = std::make_unique<Parameter>();
      parameter->index = static_cast<int>(parameters_.size());
      parameter->name = "p" + std::to_string(parameters_.size());
      parameter->shape = shape;
      order_.push_back(parameter.get());
      parameters_.push_back(std::move(parameter));
    }
    plan_ = plan_buckets(order_, {}, DType::kFloat32, 300);
    ConfigSection optimizer(nlohmann::json{{"momentum", 0.9}}, "optimizer");
    rule_ = optimizers().make("sgd", "optimizer.type", optimizer);
    buckets_ = make_buckets(plan_, backend, DType::kFloat32, *rule_, false);
    if (transport.size() > 1) {
      ConfigSection section(settings.topology, "topology");
      topology_ = make_topology(section, {transport.size(), transport.size()});
    }
    mixer_ = transport.make_mixer(backend);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      set(buckets_[b].parameters,
          static_cast<double>(transport.rank()) + static_cast<double>(b) / 8);
      set(buckets_[b].gradients, 0.01 * static_cast<double>(transport.rank() + 1));
    }
    backend.synchronize();
    algorithm_ = make_algorithm(algorithm_of("gossip"),
                                {.backend = backend,
                                 .transport = transport,
                                 .mixer = *mixer_,
                                 .rule = *rule_,
                                 .buckets = buckets_,
                                 .topology = topology_.get(),
                                 .start_at_begin = settings.graphs || settings.start_at_begin});
  }
  ~PeerJob() {
    try {
      backend_.synchronize();  // graphs name the buckets' memory
    } catch (...) {
    }
  }
  PeerJob(const PeerJob&) = delete;
  PeerJob& operator=(const PeerJob&) = delete;

  void run() {
    for (int i = 0; i < settings_.steps; ++i) step();
    finish();
  }
  void step() {
    const StepInfo info{t_, t_ + 1, 1.0, 0.1 / static_cast<double>(t_ + 1)};
    if (settings_.graphs && transport_.size() > 1) {
      by_graph(info);
    } else {
      issue(info);
    }
    ++t_;
  }
  void finish() {
    algorithm_->finish();
    backend_.synchronize();
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const Bucket& bucket : buckets_) {
      std::vector<float> part(static_cast<std::size_t>(bucket.layout->elements));
      backend_.copy_to_host(bucket.parameters, part.data());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<Bucket>& buckets() { return buckets_; }
  int replays() const { return replays_; }
  Mixer& mixer() { return *mixer_; }
  void graphs(bool on) { settings_.graphs = on; }

 private:
  void set(const Tensor& tensor, double base) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(base + 0.37 * static_cast<double>(i % 29) / 28.0);
    backend_.copy_from_host(values.data(), tensor);
  }
  void issue(const StepInfo& info) {
    algorithm_->begin(info);
    for (std::size_t b = 0; b < buckets_.size(); ++b) algorithm_->bucket_ready(static_cast<int>(b));
    algorithm_->backward_done();
  }
  void by_graph(const StepInfo& info) {
    std::string why;
    const std::int64_t period = algorithm_->graph_period(why);
    if (period == 0) fail(ExitCode::kInternal, "test", "no period: {}", why);
    if (info.step < period + 1) return issue(info);
    const StepValues values{.pass = info.step, .lr = info.lr, .step = info.optimizer_step};
    std::unique_ptr<Capture>& capture = captures_[info.step % period];
    if (capture) {
      capture->launch(values);
      ++replays_;
      return;
    }
    capture = Capture::begin(backend_, transport_, mixer_.get(), buckets_, values);
    require(capture != nullptr, "test", "this backend has no graphs");
    issue(info);
    capture->end();
    capture->launch(values);
  }

  Backend& backend_;
  Transport& transport_;
  PeerJobSettings settings_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Parameter*> order_;
  BucketPlan plan_;
  std::unique_ptr<OptimizerRule> rule_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Algorithm> algorithm_;
  std::map<std::int64_t, std::unique_ptr<Capture>> captures_;
  std::int64_t t_ = 0;
  int replays_ = 0;
};

struct PeerWorldOptions {
  double timeout_seconds = 20.0;
  int ranks_per_host = 0;  ///< 0: all on one
};

/// A rank's end: peer memory over host memory, or `refusal` says why not.
inline std::unique_ptr<Transport> open_peers(FakeWorld& world, int rank, Backend& backend,
                                             const PeerWorldOptions& options,
                                             std::string& refusal) {
  auto between = make_staged_transport(world.transport(rank));
  const int host = options.ranks_per_host > 0 ? rank / options.ranks_per_host : 0;
  auto peers = make_peer_transport(std::move(between), backend,
                                   make_thread_sharing("host " + std::to_string(host), false),
                                   {options.timeout_seconds}, refusal);
  return peers ? std::move(peers) : std::move(between);
}

/// Calls body(transport, backend) on a thread for each rank.
inline void with_peers(int ranks, const PeerWorldOptions& options,
                       const std::function<void(Transport&, cuda::CudaBackend&)>& body) {
  FakeWorldOptions control;
  control.timeout_seconds = 20.0;
  control.ranks_per_host = options.ranks_per_host;
  FakeWorld world(ranks, control);
  world.run([&](Transport& end) {
    cuda::CudaBackend backend(0, false, false, true);
    std::string refusal;
    const auto transport = open_peers(world, end.rank(), backend, options, refusal);
    require(refusal.empty(), "test", "peer memory was refused: {}", refusal);
    body(*transport, backend);
  });
}

}  // namespace starling::tests
