#include "topology/topology.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "core/typed_section.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

using Row = std::vector<std::pair<int, double>>;

/// Row i of what groups and rows say, be their numbers ranks or nodes.
Row unit_row(const Round& round, int i) {
  if (!round.rows.empty()) {
    require(i >= 0 && static_cast<std::size_t>(i) < round.rows.size(), "topology",
            "row {} of {} asked for", i, round.rows.size());
    return round.rows[static_cast<std::size_t>(i)];
  }
  for (const Group& group : round.groups) {
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), i)) continue;
    if (group.ranks.size() == 1) break;
    const double other = (1.0 - group.self_weight) / static_cast<double>(group.ranks.size() - 1);
    Row result;
    for (const int j : group.ranks) {
      const double weight = j == i ? group.self_weight : other;
      if (weight != 0.0) result.emplace_back(j, weight);
    }
    return result;
  }
  return {{i, 1.0}};
}

}  // namespace

Round Topology::round(std::int64_t k) const {
  require(k >= 0, "topology", "round {} asked for: rounds count from 0", k);
  const std::int64_t length = period();
  return make_round(length > 0 ? k % length : k);
}

Round over_ranks(const Round& round) {
  const int per_node = round.ranks_per_node;
  if (per_node == 1) return round;
  Round result;
  const bool means = round.rows.empty() &&
                     std::all_of(round.groups.begin(), round.groups.end(), [](const Group& group) {
                       return group.ranks.size() == 1 ||
                              group.self_weight == 1.0 / static_cast<double>(group.ranks.size());
                     });
  if (means) {
    for (const Group& group : round.groups) {
      Group& merged = result.groups.emplace_back();
      for (const int node : group.ranks) {
        for (int r = 0; r < per_node; ++r) merged.ranks.push_back(node * per_node + r);
      }
      merged.self_weight = 1.0 / static_cast<double>(merged.ranks.size());
    }
    return result;
  }
  int nodes = static_cast<int>(round.rows.size());
  for (const Group& group : round.groups) nodes += static_cast<int>(group.ranks.size());
  for (int i = 0; i < nodes * per_node; ++i) result.rows.push_back(Topology::row(round, i));
  return result;
}

std::vector<std::pair<int, double>> Topology::row(const Round& round, int i) {
  const int per_node = round.ranks_per_node;
  if (per_node == 1) return unit_row(round, i);
  Row result;
  for (const auto& [node, weight] : unit_row(round, i / per_node)) {
    for (int r = 0; r < per_node; ++r) result.emplace_back(node * per_node + r, weight / per_node);
  }
  return result;
}

TopologyRegistry& topologies() {
  static TopologyRegistry registry("topology");
  return registry;
}

void register_builtin_topologies() {
  static const bool done = [] {
#define STARLING_ADD_TOPOLOGY(name, type, summary) topologies().add(type, make_##name, summary);
    STARLING_TOPOLOGIES(STARLING_ADD_TOPOLOGY)
#undef STARLING_ADD_TOPOLOGY
    return true;
  }();
  static_cast<void>(done);
}

std::vector<std::pair<std::string, std::unique_ptr<Topology>>> topologies_for(
    const RankLayout& site) {
  std::vector<std::pair<std::string, std::unique_ptr<Topology>>> result;
  // Asks every maker. Makers that refuse come back here for their own error's text: the flag ends
  // that at the first level.
  static thread_local bool asking = false;
  if (std::exchange(asking, true)) return result;
  for (const std::string& name : topologies().names()) {
    try {
      ConfigSection empty(nlohmann::json::object(), "defaults");
      result.emplace_back(name, topologies().make(name, "type", empty, site));
    } catch (const std::exception&) {  // does not take it, or (custom) needs keys
    }
  }
  asking = false;
  return result;
}

std::string topologies_that_take(const RankLayout& site, TopologyKind kind) {
  std::string result;
  for (const auto& [name, topology] : topologies_for(site)) {
    if (kind_fault(*topology, kind).empty()) result += (result.empty() ? "" : ", ") + name;
  }
  return result;
}

namespace {

void need(bool fits, const std::string& type, const char* number, const RankLayout& site) {
  if (fits) return;
  fail(ExitCode::kUsage, "topology", "{} needs {}, not {}; for {}: {}", type, number, site.ranks,
       counted(site.ranks, "rank"), topologies_that_take(site));
}

}  // namespace

void need_even(const std::string& type, const RankLayout& site) {
  need(site.ranks % 2 == 0, type, "an even number of ranks", site);
}
void need_power_of_two(const std::string& type, const RankLayout& site) {
  need(is_power_of_two(site.ranks), type, "a power of two of ranks (1, 2, 4, 8, …)", site);
}

int read_ranks_per_node(ConfigSection& section, const RankLayout& site) {
  int ranks = site.ranks_per_node;
  section.read("ranks_per_node", ranks, Range::closed(1, 1 << 30),
               "L: consecutive ranks that share a node; default: the ranks on one host");
  return ranks;
}

std::unique_ptr<Topology> make_unchecked_topology(ConfigSection& section, const RankLayout& site,
                                                  const std::string& standard) {
  require(site.ranks >= 1 && site.ranks_per_node >= 1, "topology",
          "a site of {} ranks, {} per node", site.ranks, site.ranks_per_node);
  const std::string type =
      section.text("type", standard, "the schedule of mixing matrices: see docs/topologies.md");
  RankLayout actual = site;
  // Every type may be given it, so that a config can change its type alone; those that use it also
  // note the default.
  if (section.has("ranks_per_node")) actual.ranks_per_node = read_ranks_per_node(section, site);
  std::unique_ptr<Topology> topology = make_typed(topologies(), type, section, actual);
  section.finish();
  return topology;
}

std::unique_ptr<Topology> make_topology(ConfigSection& section, const RankLayout& site,
                                        TopologyKind kind, const std::string& standard) {
  std::unique_ptr<Topology> topology = make_unchecked_topology(section, site, standard);
  const std::string type = section.resolved().value("type", "");
  named("topology", type, [&] { check_topology(*topology, type, kind); });
  return topology;
}

std::unique_ptr<Topology> make_topology(ConfigSection& section, const RankLayout& site) {
  return make_topology(section, site, TopologyKind::kDoublyStochastic);
}

}  // namespace starling
