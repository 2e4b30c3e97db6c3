// Gossip training in one file, without the trainer: each rank fits y = sin 3x on its own part of
// the interval, and averages its parameters with a neighbour in every step. Built with the tests:
//   mpirun --oversubscribe -n 4 build/bin/starling-step
//
// It shows the parts that docs/architecture.md describes, in the order in which a run makes them:
// model, shape trace, buckets, transport, topology, algorithm, scheduler, and then the steps.

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/algorithm.h"
#include "comm/averaging.h"
#include "comm/bucket.h"
#include "comm/mixer.h"
#include "comm/mpi/session.h"
#include "comm/scheduler.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "layers/functions.h"
#include "layers/layer.h"

using namespace starling;
namespace f = starling::functions;

namespace {

constexpr std::int64_t kBatch = 64, kWidth = 32, kSteps = 400;

/// 1 → 32 → 32 → 1, with tanh between. build() declares parameters, compute() is the arithmetic.
class Curve final : public Layer {
  Shape build(const Shape& input) override {
    const std::vector<std::int64_t> sizes{input[0], kWidth, kWidth, 1};
    for (std::size_t k = 0; k + 1 < sizes.size(); ++k) {
      const auto init = Init::uniform(1.0 / std::sqrt(static_cast<double>(sizes[k])));
      const std::string name = "linear" + std::to_string(k);
      weights_.push_back(&add_parameter(name + ".weight", {sizes[k + 1], sizes[k]}, init));
      biases_.push_back(&add_parameter(name + ".bias", {sizes[k + 1]}, init));
    }
    return {1};
  }
  Variable compute(const Variable& x, Pass& pass) override {
    Variable h = x;
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      h = f::linear(h, *weights_[k], biases_[k], pass);
      if (k + 1 < weights_.size()) h = f::tanh(h, pass);
    }
    return h;
  }
  std::vector<Parameter*> weights_, biases_;
};

/// Forward pass, loss and backward pass. On the meta backend it computes shapes alone.
Tensor train_on(Model& model, const Tensor& x, const Tensor& y, Tape& tape) {
  Pass pass{.backend = tape.backend(), .tape = &tape, .training = true, .overwrites = true};
  const Variable error = f::subtract(model.forward(Variable(x), pass), Variable(y), pass);
  const Variable loss = f::mean_loss(f::square(error, pass), 1.0, pass);
  tape.backward(loss);
  return loss.value();
}

/// In which order the backward pass completes gradients: what buckets are filled by.
std::vector<Parameter*> ready_order(Model& model) {
  const auto shapes = make_meta_backend();
  model.allocate(*shapes, DType::kFloat32);
  std::vector<Parameter*> order;
  Tape tape(*shapes);
  tape.set_ready_observer([&](Parameter& parameter) { order.push_back(&parameter); });
  const Tensor sample(*shapes, Shape{kBatch, 1}, DType::kFloat32);
  train_on(model, sample, sample, tape);
  model.drop_memory();
  return order;
}

void train(const MpiSession& session) {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  Model model(std::make_unique<Curve>(), Shape{1});

  // Parameters, gradients and the optimizer's states are in flat buckets, in backward order. The
  // model's tensors are views into them. With 2 KiB each, this small model has three buckets.
  const nlohmann::json none = nlohmann::json::object();
  ConfigSection defaults(none, "defaults");
  const auto adamw = optimizers().make("adamw", "optimizer.type", defaults);
  const BucketPlan plan = plan_buckets(ready_order(model), {}, DType::kFloat32, 2048.0);
  std::vector<Bucket> buckets = make_buckets(plan, *backend, DType::kFloat32, *adamw, false);
  model.initialise(/*seed=*/1);  // the same numbers on all ranks

  // A transport moves buffers; a mixer brings a bucket to the neighbours and theirs to the update;
  // a topology says who they are in each round; the algorithm says when all that happens.
  const auto transport = session.make_transport(/*timeout_seconds=*/60.0);
  agree_on_plan(plan, DType::kFloat32, transport->world());
  const auto mixer = transport->make_mixer(*backend);
  const auto topology = make_topology(defaults, {transport->size(), 1});
  const auto gossip = make_algorithm(algorithm_of("gossip"), {.backend = *backend,
                                                              .transport = *transport,
                                                              .mixer = *mixer,
                                                              .rule = *adamw,
                                                              .buckets = buckets,
                                                              .topology = topology.get()});

  // The tape reports each gradient when it is complete. After a bucket's last one the scheduler
  // calls the algorithm: one kernel mixes in the neighbours' parameters and applies AdamW, and the
  // next exchange starts, all while the backward pass continues with earlier layers.
  BucketScheduler scheduler(plan, buckets, *gossip, /*allow_unused=*/false);
  Tape tape(*backend);
  tape.set_gradient_memory([&](Parameter& parameter) { scheduler.begun(parameter); });
  tape.set_ready_observer([&](Parameter& parameter) { scheduler.ready(parameter); });

  // Rank r of n knows only its n-th part of [-1, 1].
  const double rank = transport->rank(), ranks = transport->size();
  std::vector<float> xs(kBatch), ys(kBatch);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const double part = (static_cast<double>(i) + 0.5) / static_cast<double>(xs.size());
    xs[i] = static_cast<float>(-1.0 + 2.0 * (rank + part) / ranks);
    ys[i] = std::sin(3.0F * xs[i]);
  }
  const Tensor x(*backend, {kBatch, 1}, DType::kFloat32), y(*backend, {kBatch, 1}, DType::kFloat32);
  backend->copy_from_host(xs.data(), x);
  backend->copy_from_host(ys.data(), y);

  for (std::int64_t t = 0; t < kSteps; ++t) {
    scheduler.begin_step({.step = t, .optimizer_step = t + 1, .lr = 3e-3});
    const Tensor loss = train_on(model, x, y, tape);
    scheduler.end_backward();
    if (t % 100 != 0 && t + 1 != kSteps) continue;
    double mean = 0.0;
    float own = 0.0F;
    backend->copy_to_host(loss, &own);
    mean = static_cast<double>(own) / ranks;
    transport->world().sum(&mean, 1);
    if (transport->rank() == 0) std::printf("step %3d  loss %.6f\n", static_cast<int>(t), mean);
  }
  gossip->finish();  // waits for what is in flight
  std::vector<Tensor> parameters;
  for (const Bucket& bucket : buckets) parameters.push_back(bucket.parameters);
  const std::vector<Tensor> means = mean_model(*transport, parameters);
  const double apart = consensus_distance(*transport, *backend, buckets, means).total;
  if (transport->rank() == 0)
    std::printf("%d ranks, distance from their mean %.6f\n", transport->size(), apart);
}

}  // namespace

int main() {
  MpiSession session;
  try {
    register_builtin_optimizers();
    register_builtin_topologies();
    register_builtin_algorithms();
    train(session);
  } catch (const Error& error) {
    session.abort(error.code(), error.what());
  }
}
