// A plug-in: layers, an operation, a topology, an optimizer, a schedule, an algorithm, a transport
// and a data set of one's own, made outside Starling's tree. docs/extending.md explains it.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <starling/functions.h>
#include <starling/layer.h>
#include <starling/optimizer.h>
#include <starling/schedule.h>
#include <starling/topology.h>

#include "gate.h"
#include "samples.h"
#include "sign.h"
#include "slow_average.h"
#include "slow_store.h"
#include "softsign.h"
#include "squareplus.h"
#include "throttled.h"

namespace {

using namespace starling;

/// y = x + act(W x + b) on vectors: {"type": "residual_linear", "activation": "silu"}.
class ResidualLinear final : public Layer {
 public:
  explicit ResidualLinear(Activation activation) : activation_(activation) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 1) bad_shape(input, "a vector");
    const std::int64_t width = input[0];
    const Init init = Init::uniform(1.0 / std::sqrt(static_cast<double>(width)));
    weight_ = &add_parameter("weight", Shape{width, width}, init);
    bias_ = &add_parameter("bias", Shape{width}, init);
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::add(
        x, functions::activation(functions::linear(x, *weight_, bias_, pass), activation_, pass),
        pass);
  }

 private:
  Activation activation_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

std::unique_ptr<Layer> make_residual_linear(ConfigSection& config) {
  const std::string name = config.choice("activation", "relu", {"relu", "gelu", "silu"},
                                         "what follows the matrix product");
  return std::make_unique<ResidualLinear>(name == "relu"   ? Activation::kRelu
                                          : name == "gelu" ? Activation::kGelu
                                                           : Activation::kSilu);
}

/// Two halves of the ranks; in round k, rank r of the first half averages with rank n/2 + (r + k)
/// mod n/2 of the second.
class Halves final : public Topology {
 public:
  explicit Halves(int ranks) : Topology(ranks) {}
  std::int64_t period() const override { return ranks() == 1 ? 1 : ranks() / 2; }

 protected:
  Round make_round(std::int64_t k) const override {
    Round round;
    const int half = ranks() / 2;
    for (int r = 0; r < half; ++r)
      round.groups.push_back({{r, half + (r + static_cast<int>(k)) % half}, 0.5});
    return round;
  }
};

std::unique_ptr<Topology> make_halves(ConfigSection&, const RankLayout& site) {
  if (site.ranks > 1 && site.ranks % 2 != 0) {
    fail(ExitCode::kUsage, "topology",
         "halves needs an even number of ranks, found {}; base-2 takes any number", site.ranks);
  }
  return std::make_unique<Halves>(site.ranks);
}

/// Halves the learning rate after a fixed number of updates.
class Halving final : public Schedule {
 public:
  Halving(double base_lr, std::int64_t every) : base_lr_(base_lr), every_(every) {}
  double lr(std::int64_t t) const override {
    return base_lr_ * std::pow(0.5, static_cast<double>(t / every_));
  }

 private:
  double base_lr_;
  std::int64_t every_;
};

std::unique_ptr<Schedule> make_halving(ConfigSection& config, const ScheduleInputs& inputs) {
  const std::int64_t every = config.integer("every", 100, Range::at_least(1.0),
                                            "updates until the rate is half of what it was");
  return std::make_unique<Halving>(inputs.base_lr, every);
}

std::unique_ptr<Dataset> make_slow_store(ConfigSection& config, std::uint64_t seed) {
  return std::make_unique<mine::SlowStore>(config, seed);
}

}  // namespace

/// Called once, before the rest of the config is read.
extern "C" void starling_register_plugin() {
  layers().add("residual_linear", make_residual_linear, "y = x + act(W x + b) on vectors");
  layers().add(
      "gate", [](ConfigSection&) { return std::make_unique<mine::Gate>(); },
      "channels of an image scaled by what their means say");
  layers().add(
      "attend",
      [](ConfigSection& config) {
        return std::make_unique<mine::Attend>(
            config.integer("heads", 4, Range::closed(1, 1024), "heads side by side"));
      },
      "attention of a sequence to itself");
  layers().add(
      "changes", [](ConfigSection&) { return std::make_unique<mine::Changes>(); },
      "steps of a sequence, and what has changed");
  losses().add(
      "mine_focal", [](ConfigSection&) { return std::make_unique<mine::Focal>(); },
      "classes that are known well count less");
  add_pointwise_layer<mine::Squareplus>();
  mine::register_softsign();  // a layer with an operation of its own
  topologies().add("halves", make_halves,
                   "pairs between two halves of the ranks, shifted every round; even n");
  add_optimizer<mine::Sign>();
  schedules().add("halving", make_halving, "half the rate after so many updates");
  algorithms().add("slow_average", mine::plan_slow_average,
                   "ranks train by themselves and average with slow momentum");
  datasets().add("slow_store", make_slow_store, "pictures of uneven size from a slow store");
  transports().add("throttled", mine::plan_throttled, "messages, as slow as on a slower network");
}
