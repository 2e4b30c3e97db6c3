#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "topology/builtin.h"
#include "topology/round_table.h"

namespace starling {
namespace {

using nlohmann::json;

/// Turns `rounds` of a config into Rounds. Every error names the place:
/// "topology.rounds[1][0].ranks".
class CustomReader {
 public:
  /// `unit`: what the rounds number, ranks or the nodes of a hierarchical round.
  CustomReader(const ConfigSection& section, int ranks, const char* unit = "rank")
      : section_(section), ranks_(ranks), unit_(unit) {}

  std::vector<Round> read(const json& value) const {
    if (value.is_null()) {
      section_.error("rounds",
                     "is required for a custom topology: a list of rounds, such as [[{{\"ranks\": "
                     "[0, 1], \"weight\": 0.5}}]]");
    }
    if (!value.is_array() || value.empty())
      section_.error("rounds", "must be a list of at least one round, not {}", shown(value));
    std::vector<Round> rounds;
    for (std::size_t k = 0; k < value.size(); ++k)
      rounds.push_back(read_round(value[k], fmt::format("rounds[{}]", k)));
    return rounds;
  }

 private:
  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    return text;
  }

  Round read_round(const json& value, const std::string& where) const {
    if (value.is_array()) return read_groups(value, where);
    if (value.is_object()) {
      refuse_other_keys(value, where, {"rows", "groups", "ranks_per_node"});
      if (value.contains("rows") && value.contains("groups"))
        section_.error(where, "has groups and rows; give one of them");
      if (value.contains("ranks_per_node")) return read_hierarchical(value, where);
      if (value.contains("rows")) return read_rows(value["rows"], where + ".rows");
      if (value.contains("groups") && value["groups"].is_array())
        return read_groups(value["groups"], where + ".groups");
    }
    section_.error(where,
                   "must be a list of groups {{\"ranks\": [...], \"weight\": w}} or {{\"rows\": "
                   "[...]}}, not {}",
                   shown(value));
  }

  Round read_hierarchical(json value, const std::string& where) const {
    const json per_node = value["ranks_per_node"];
    const bool whole = per_node.is_number_integer() && per_node >= 1 && per_node <= ranks_ &&
                       ranks_ % per_node.get<int>() == 0;
    if (!whole) {
      section_.error(where + ".ranks_per_node",
                     "must be a number of ranks that divides the {} there are, not {}", ranks_,
                     shown(per_node));
    }
    value.erase("ranks_per_node");
    const int nodes = ranks_ / per_node.get<int>();
    Round round = CustomReader(section_, nodes, "node").read_round(value, where);
    if (per_node > 1) put_over_nodes(round, nodes, per_node.get<int>());
    return round;
  }

  void refuse_other_keys(const json& object, const std::string& where,
                         const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      std::string list;
      for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
      section_.error(fmt::format("{}.{}", where, key), "unknown key{}; known: {}",
                     suggestion(key, known), list);
    }
  }

  int read_rank(const json& value, const std::string& where) const {
    if (!value.is_number_integer())
      section_.error(where, "must be a {} (an integer from 0 to {}), not {}", unit_, ranks_ - 1,
                     shown(value));
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() < static_cast<std::uint64_t>(ranks_)
                          : value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() < ranks_;
    if (!fits)
      section_.error(where, "{} {} does not exist: there are {} {}s, 0 to {}", unit_, shown(value),
                     ranks_, unit_, ranks_ - 1);
    return value.get<int>();
  }

  double read_weight(const json& value, const std::string& where) const {
    const double weight = value.is_number() ? value.get<double>() : -1.0;
    if (!std::isfinite(weight) || weight < 0.0 || weight > 1.0)
      section_.error(where, "must be a weight, 0 … 1, not {}", shown(value));
    return weight;
  }

  Round read_groups(const json& list, const std::string& where) const {
    Round round;
    std::vector<char> used(static_cast<std::size_t>(ranks_), 0);
    for (std::size_t g = 0; g < list.size(); ++g) {
      const std::string here = fmt::format("{}[{}]", where, g);
      if (!list[g].is_object())
        section_.error(here, "must be a group {{\"ranks\": [...], \"weight\": w}}, not {}",
                       shown(list[g]));
      refuse_other_keys(list[g], here, {"ranks", "weight"});
      const json ranks = list[g].value("ranks", json());
      if (!ranks.is_array() || ranks.empty())
        section_.error(here + ".ranks", "must be a list of ranks, not {}", shown(ranks));
      Group group;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const int rank = read_rank(ranks[r], fmt::format("{}.ranks[{}]", here, r));
        if (used[static_cast<std::size_t>(rank)]++)
          section_.error(here + ".ranks", "{} {} is twice in this round; a {} belongs to one group",
                         unit_, rank, unit_);
        group.ranks.push_back(rank);
      }
      std::sort(group.ranks.begin(), group.ranks.end());
      group.self_weight = 1.0 / static_cast<double>(group.ranks.size());
      if (list[g].contains("weight"))
        group.self_weight = read_weight(list[g]["weight"], here + ".weight");
      if (group.ranks.size() > 1) {
        round.groups.push_back(std::move(group));
      } else if (group.self_weight != 1.0) {
        section_.error(here + ".weight", "must be 1 for a group of one rank, not {}",
                       group.self_weight);
      }
    }
    return round;
  }

  Round read_rows(const json& list, const std::string& where) const {
    const auto count = static_cast<std::size_t>(ranks_);
    if (!list.is_array() || list.size() != count) {
      section_.error(where, "must be a list of {} rows, one for each {}, not {}", ranks_, unit_,
                     list.is_array() ? fmt::format("{} rows", list.size()) : shown(list));
    }
    Round round;
    round.rows.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string here = fmt::format("{}[{}]", where, i);
      if (!list[i].is_array() || list[i].empty())
        section_.error(here, "must be a list of [rank, weight] pairs, not {}", shown(list[i]));
      auto& row = round.rows[i];
      std::vector<char> used(count, 0);
      for (std::size_t e = 0; e < list[i].size(); ++e) {
        const json& entry = list[i][e];
        const std::string place = fmt::format("{}[{}]", here, e);
        if (!entry.is_array() || entry.size() != 2)
          section_.error(place, "must be a pair [rank, weight], not {}", shown(entry));
        const int rank = read_rank(entry[0], place + "[0]");
        const double weight = read_weight(entry[1], place + "[1]");
        if (used[static_cast<std::size_t>(rank)]++)
          section_.error(here, "{} {} is twice in this row", unit_, rank);
        if (weight != 0.0) row.emplace_back(rank, weight);
      }
      std::sort(row.begin(), row.end());
    }
    return round;
  }

  const ConfigSection& section_;
  int ranks_;
  const char* unit_;
};

}  // namespace

/// Rounds as the config lists them.
std::unique_ptr<Topology> make_custom(ConfigSection& section, const RankLayout& site) {
  const json rounds = section.raw(
      "rounds", "list of rounds",
      "a round is a list of groups {\"ranks\": [0, 1], \"weight\": 0.5} (weight: a rank's own, "
      "default 1/size), or {\"rows\": [[[j, w], …] for each rank]}; with \"ranks_per_node\": L "
      "beside \"rows\" or \"groups\" these number nodes",
      R"([[{"ranks": [0, 1]}, {"ranks": [2, 3]}], [{"ranks": [0, 2]}, {"ranks": [1, 3]}]])");
  // A single rank always uses the identity, so that a config can be tried without mpirun.
  if (site.ranks == 1 && !rounds.is_null()) return std::make_unique<RoundTable>(1);
  return std::make_unique<RoundTable>(site.ranks, CustomReader(section, site.ranks).read(rounds));
}

}  // namespace starling
