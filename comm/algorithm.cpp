#include "comm/algorithm.h"

#include <numeric>
#include <set>
#include <utility>

#include "comm/algorithms/builtin.h"
#include "comm/exchange_plan.h"
#include "comm/mixers/messages.h"
#include "comm/replica.h"
#include "core/error.h"
#include "core/typed_section.h"

namespace starling {
double Algorithm::take_wait_seconds() {
  double seconds = wait_.take_seconds() + site_.mixer.take_wait_seconds();
  for (const auto& mixer : own_mixers_) seconds += mixer->take_wait_seconds();
  return seconds;
}

void Algorithm::copy_parameters_to(std::size_t k) {
  for (int b = 0; b < buckets(); ++b) site_.backend.copy(bucket(b).parameters, state(b, k));
}

std::vector<Tensor> Algorithm::like_parameters() const {
  std::vector<Tensor> result;
  for (const Bucket& bucket : site_.buckets)
    result.emplace_back(site_.backend, bucket.parameters.shape(), bucket.parameters.dtype());
  return result;
}

void Algorithm::settle(Ticket& ticket, int bucket) {
  if (ticket) wait(ticket, bucket);
  ticket = 0;
}

Mixer& Algorithm::make_mixer_for(const std::function<Tensor(const Bucket&)>& of, bool overlap,
                                 std::unique_ptr<Mixer> mixer) {
  if (!mixer) mixer = make_message_mixer(site_.backend, site_.transport);
  own_mixers_.push_back(std::move(mixer));
  return mix_tensors(of, overlap, *own_mixers_.back());
}

Mixer& Algorithm::mix_tensors(const std::function<Tensor(const Bucket&)>& of, bool overlap,
                              Mixer& mixer) {
  std::vector<Bucket>& copies = mixed_.emplace_back();
  for (const Bucket& bucket : site_.buckets) {
    copies.emplace_back();
    copies.back().layout = bucket.layout;
    copies.back().parameters = of(bucket);
    copies.back().sync = bucket.sync;
  }
  mixer.open({copies, site_.topology, overlap, false, true});
  return mixer;
}

std::int64_t Algorithm::graph_period(std::string& why) const {
  if (site_.period == 0)
    why = "the algorithm does not say after how many steps its work repeats (its plan's `steps`)";
  else if (ranks() > 1)
    why = site_.mixer.why_not_captured();
  if (!why.empty()) return 0;
  const bool two_buffers = !site_.buckets.empty() && site_.buckets.front().spare;
  return std::lcm(repeat_period(ranks() > 1 ? site_.topology : nullptr, site_.rule, why),
                  std::lcm(site_.period, std::int64_t{two_buffers ? 2 : 1}));
}

std::int64_t repeat_period(const Topology* topology, const OptimizerRule& rule, std::string& why) {
  if (topology && topology->period() == 0) {
    why = "the topology's rounds never repeat";
    return 0;
  }
  return std::lcm(topology ? topology->period() : 1, rule.facts().phases);
}

AlgorithmRegistry& algorithms() {
  static AlgorithmRegistry registry("algorithm");
  return registry;
}

void register_builtin_algorithms() {
  static const bool done = [] {
#define STARLING_ADD_ALGORITHM(type, summary) algorithms().add(#type, plan_##type, summary);
    STARLING_ALGORITHMS(STARLING_ADD_ALGORITHM)
#undef STARLING_ADD_ALGORITHM
    return true;
  }();
  static_cast<void>(done);
}

AlgorithmPlan read_algorithm(ConfigSection& section) {
  const std::string type = section.text("type", "gossip", "see `--list algorithms`");
  AlgorithmPlan plan = make_typed(algorithms(), type, section);
  plan.name = type;
  plan.messages.block = section.resolved().value("block", std::int64_t{0});
  section.finish();
  if (!plan.make)
    section.error("type", "{} gives a plan without `make`, so nothing can be made of it",
                  algorithms().whose(type));
  std::set<std::string> names;
  for (const KeptState& state : plan.states) {
    if (state.name.empty() || !names.insert(state.name).second)
      section.error("type",
                    "{} keeps states of which two are named '{}', or one has no name; checkpoints "
                    "tell them apart by it",
                    algorithms().whose(type), state.name);
  }
  return plan;
}

AlgorithmPlan algorithm_of(const nlohmann::json& value, nlohmann::json* resolved,
                           const std::string& source) {
  const nlohmann::json config{{"sync", {{"algorithm", value}}}};
  ConfigSection section =
      ConfigSection(config, source).section("sync", "").section("algorithm", "", "type");
  AlgorithmPlan plan = read_algorithm(section);
  if (resolved) *resolved = section.resolved();
  return plan;
}

AlgorithmPlan exchanged_by(AlgorithmPlan plan, const MixerKind& exchange) {
  if (plan.by_exchange) std::exchange(plan.by_exchange, nullptr)(plan, exchange);
  return plan;
}

std::vector<AlgorithmPlan> known_algorithms() {
  std::vector<AlgorithmPlan> result;
  for (const std::string& type : algorithms().names()) {
    ConfigSection::described_by([&](ConfigSection& keys) {
      result.push_back(algorithms().make(type, "type", keys));
      result.back().name = type;
    });
  }
  return result;
}

int KeptState::copies_on(const Topology* topology, int rank) const {
  if (!per_neighbour) return copies;
  if (!topology || topology->ranks() == 1) return 0;
  return 1 +
         static_cast<int>(
             as_messages(plan_exchange(topology->round(0), rank, true), rank).receive_from.size());
}

std::unique_ptr<Algorithm> make_algorithm(const AlgorithmPlan& plan, const AlgorithmSite& site) {
  for (Bucket& bucket : site.buckets) {
    if (!bucket.sync.empty()) continue;
    for (const KeptState& state : plan.states) {
      const int copies = state.copies_on(site.topology, site.transport.rank());
      for (int copy = 0; copy < copies; ++copy) {
        if (state.numbers > 0 && &bucket != site.buckets.data()) continue;
        const Shape shape = state.numbers > 0 ? Shape{state.numbers} : bucket.parameters.shape();
        const DType dtype = state.dtype.value_or(bucket.parameters.dtype());
        Replica* const replica = state.numbers == 0 ? site.replica : nullptr;
        const std::string name = copies == 1 ? state.name : fmt::format("{}.{}", state.name, copy);
        Tensor numbers;
        if (site.find) numbers = site.find(bucket, "sync." + name, shape.elements(), dtype);
        if (!numbers)
          numbers = allocate_in(replica, site.backend, shape, dtype,
                                bucket.own.value_or(ElementRange{0, shape.elements()}));
        bucket.sync.push_back({name, numbers});
      }
      // Ranks have unequally many neighbours, and all take part in sharing memory.
      for (int rank = 0, most = copies; site.replica && rank < site.transport.size(); ++rank) {
        for (; most < state.copies_on(site.topology, rank); ++most)
          site.replica->allocate(site.backend, Shape{1}, DType::kUInt8);
      }
    }
  }
  AlgorithmSite whole = site;
  whole.ranks_per_node = plan.needs.ranks_per_node;
  whole.period = plan.steps.period;
  std::unique_ptr<Algorithm> made = named("algorithm", algorithms().whose(plan.name), [&] {
    return site.replica ? make_in_replica(whole, plan.make) : plan.make(whole);
  });
  if (!made)
    fail(ExitCode::kUsage, "algorithm", "the plan of {} makes null; `make` must give an Algorithm",
         algorithms().whose(plan.name));
  return made;
}

}  // namespace starling
