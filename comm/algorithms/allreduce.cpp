#include <algorithm>

#include "comm/agreement.h"
#include "comm/algorithms/builtin.h"
#include "comm/algorithms/updater.h"
#include "comm/exchange_plan.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "topology/round_table.h"

namespace starling {
namespace {

/// The mean gradient of all ranks. Each bucket's sum starts as soon as its last gradient is ready,
/// in place; buckets whose sum has arrived are updated in order, without ever blocking the backward
/// pass. On devices, where only streams wait, an update is issued right after its sum.
class AllReduce final : public Algorithm {
 public:
  /// `share`: factor on a rank's gradients. `exchange`: computes their sum in separate memory;
  /// kNone: a sum over all ranks in place.
  AllReduce(const AlgorithmSite& site, double share, bool delay, Exchange exchange)
      : Algorithm(site),
        delay_(delay),
        updater_(site, share),
        tickets_(site.buckets.size()),
        exchange_(std::move(exchange)) {
    if (exchange_.kind != Exchange::Kind::kNone) {
      sums_ = like_parameters();
    } else if (site.transport.size() > 1) {
      site.transport.prepare({});
    }
    // There are sums over all ranks alone: now the transport knows what goes which way
    streams_wait_ =
        site.backend.device() == DeviceType::kCuda && site.transport.why_not_captured().empty();
  }
  void begin(const StepInfo& info) override {
    info_ = info;
    started_ = updated_ = 0;
    std::fill(tickets_.begin(), tickets_.end(), Ticket{0});
  }

  void bucket_ready(int bucket) override {
    const auto b = static_cast<std::size_t>(bucket);
    if (!delay_) start(b);
    started_ = b + 1;
    if (delay_ || !updater_.in_backward()) return;
    while (updated_ < started_ && arrived(updated_)) update_next();
  }

  void backward_done() override {
    for (std::size_t b = 0; delay_ && b < started_; ++b) start(b);
    if (updater_.needs_all_gradients()) {
      for (std::size_t b = 0; b < started_; ++b) wait_once(b);
      updater_.join();              // the update stream has waited for the sums
      updater_.measure_all(info_);  // an overflow on any rank is in the sums of all
    }
    while (updated_ < started_) update_next();
    updater_.join();
  }

  bool gradients_consumed(int bucket) const override {
    return static_cast<std::size_t>(bucket) < updated_;
  }
  bool updates_at_once() const override {
    return !delay_ && updater_.in_backward() && (streams_wait_ || site_.transport.size() == 1);
  }
  bool parameters_final(int) const override { return updates_at_once(); }
  void finish() override {}
  void resume(std::int64_t) override {}
  Tensor control() const override { return updater_.overflow_control(); }

 private:
  void start(std::size_t b) {
    if (site_.transport.size() == 1) return;
    const Tensor& gradients = site_.buckets[b].gradients;
    const ExchangeLabel label{info_.step, static_cast<int>(b), info_.step};
    tickets_[b] = sums_.empty()
                      ? site_.transport.start_sum(gradients, gradients, label)
                      : site_.transport.start_exchange(exchange_, gradients, {sums_[b]}, label);
    if (!site_.overlap || streams_wait_) wait_once(b);
  }

  bool arrived(std::size_t bucket) {
    return !tickets_[bucket] || site_.transport.done(tickets_[bucket]);
  }

  void wait_once(std::size_t bucket) {
    if (!tickets_[bucket]) return;
    settle(tickets_[bucket], static_cast<int>(bucket));
    if (sums_.empty()) return;
    const StreamScope scope(site_.backend, StreamKind::kUpdate);
    // Of two ranks, what arrived is the other's
    site_.backend.weighted_sum({.in = {sums_[bucket]},
                                .weight = {1.0},
                                .terms = 1,
                                .out = site_.buckets[bucket].gradients,
                                .accumulate = exchange_.kind == Exchange::Kind::kNeighbours});
  }

  void update_next() {
    wait_once(updated_);
    updater_.update(static_cast<int>(updated_), info_);
    ++updated_;
  }

  bool delay_;  ///< sums start after the pass
  Updater updater_;
  std::vector<Ticket> tickets_;  ///< per bucket; 0: nothing in flight
  Exchange exchange_;
  std::vector<Tensor> sums_;   ///< by bucket; empty where sums are in place
  bool streams_wait_ = false;  ///< Transport::wait() costs the host nothing
  std::size_t started_ = 0, updated_ = 0;
  StepInfo info_;
};

Exchange planned(Transport& transport, const Round& round) {
  transport.prepare(summed_groups(RoundTable(transport.size(), round), false));
  return plan_exchange(round, transport.rank());
}

/// Plans the mean over all ranks in two levels, nodes and ranks, and prepares the transport for it.
Exchange mean_by_nodes(Transport& transport, int per_node) {
  return planned(transport, {.groups = {mean_group(0, transport.size() / per_node, true)},
                             .rows = {},
                             .ranks_per_node = per_node});
}

/// Plans the sum over this rank's node, and prepares the transport for it. With two ranks the
/// received buffer is the other rank's alone.
Exchange sum_in_node(Transport& transport, int per_node) {
  std::vector<Group> nodes;
  for (int first = 0; first < transport.size(); first += per_node)
    nodes.push_back(mean_group(first, per_node, true));
  return planned(transport, {.groups = nodes, .rows = {}});
}

}  // namespace

std::int64_t read_ranks_per_node(ConfigSection& config) {
  return config.integer(
      "ranks_per_node", 0, Range::closed(0, 1e6),
      "consecutive ranks that share a node; 0: the topology's, or those of a host");
}

int ranks_per_node(const AlgorithmSite& site) {
  if (site.ranks_per_node > 0) return static_cast<int>(site.ranks_per_node);
  World& world = site.transport.world();
  const double here = world.local_size();
  double most[2] = {here, -here};
  if (world.size() > 1) world.max(most, 2);
  const int count = static_cast<int>(most[0]);
  if (most[0] != -most[1] || world.size() % count != 0) {
    fail_on_all_ranks(
        ExitCode::kUsage, "config", {.key = "sync.algorithm.ranks_per_node"},
        "is not given, and hosts have {} to {} of the {} ranks; give a number that divides them",
        -most[1], most[0], world.size());
  }
  return count;
}

std::unique_ptr<Algorithm> make_all_reduce(const AlgorithmSite& site) {
  return std::make_unique<AllReduce>(site, 1.0 / site.transport.size(), false, Exchange());
}

std::unique_ptr<Algorithm> make_node_all_reduce(const AlgorithmSite& site, int per_node) {
  return std::make_unique<AllReduce>(site, 1.0 / per_node, false,
                                     sum_in_node(site.transport, per_node));
}

AlgorithmPlan plan_allreduce(ConfigSection& config) {
  const bool average =
      config.boolean("average", true, "the mean of all ranks' gradients; false: their sum");
  const bool delay =
      config.boolean("delay", false, "sums start after the backward pass, not in it");
  const bool chunks =
      config.boolean("scatter_gather", false,
                     "each rank adds up its chunk of a bucket, then all get it: the same bits");
  const bool nodes = config.boolean(
      "hierarchical", false, "a node's ranks first, then the nodes: equal up to the order of sums");
  const std::int64_t given = read_ranks_per_node(config);
  if (given > 0 && !nodes)
    config.error("ranks_per_node",
                 "is for hierarchical, which is false; set that, or leave it out");
  if (chunks && nodes)
    config.error("hierarchical", "does not go with scatter_gather; allowed: one of them");
  return {.title = "all-reduce",
          .needs = {.by_nodes = nodes, .ranks_per_node = given},
          .scratch = chunks || nodes ? 1 : 0,
          .steps = {.period = 1},
          .equality = {.mean_gradients_before = AlgorithmEquality::kAlways},
          .cost = {.exchanges = {{.what = PlannedExchange::kGradients,
                                  .hidden = delay ? 0 : 1,
                                  .ranks_per_node = nodes ? given : 1}},
                   .disagreement = [](double) { return 0.0; }},
          .make = [=](const AlgorithmSite& site) -> std::unique_ptr<Algorithm> {
            if (chunks && site.transport.size() > 1)
              return make_scatter_gather(site, average, delay);
            const int size = site.transport.size(), per_node = nodes ? ranks_per_node(site) : 1;
            // One node alone, or ranks that are nodes: there is nothing to do first.
            if (per_node == 1 || per_node >= size)
              return std::make_unique<AllReduce>(site, average ? 1.0 / size : 1.0, delay,
                                                 Exchange());
            return std::make_unique<AllReduce>(site, average ? 1.0 : size, delay,
                                               mean_by_nodes(site.transport, per_node));
          }};
}

}  // namespace starling
