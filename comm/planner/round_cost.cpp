#include <numeric>

#include "comm/engine/window.h"
#include "comm/planner/predict.h"
#include "core/error.h"

namespace starling {
namespace {

/// Rounds considered, of topologies with a longer period or none
constexpr std::int64_t kMostRounds = 64;

/// Bytes per byte of bucket that ranks and hosts send in one round.
class Load {
 public:
  explicit Load(const NetworkModel& network)
      : network_(network),
        out_(static_cast<std::size_t>(network.hosts()), 0.0),
        in_(out_),
        sums_(out_),
        rank_inside_(static_cast<std::size_t>(network.ranks), 0.0) {}

  /// `from` sends `share` of the bucket to `to`, once per round.
  void message(int from, int to, double share) {
    const int a = network_.host_of(from), b = network_.host_of(to);
    sent_ += share;
    if (a == b) {
      rank_inside_[static_cast<std::size_t>(to)] += share;
      inside_ = true;
    } else {
      out_[static_cast<std::size_t>(a)] += share;
      in_[static_cast<std::size_t>(b)] += share;
      pair_ = std::max(pair_, share);
      between_ = true;
    }
  }
  /// A mean or sum over a group by messages: every member sums one part and sends the result to the
  /// others.
  void group_sum(const std::vector<int>& ranks, double share = 1.0) {
    const auto m = static_cast<double>(ranks.size());
    for (std::size_t i = 0; i < ranks.size();) {  // ascending, so host by host
      std::size_t end = i + 1;
      while (end < ranks.size() && network_.host_of(ranks[end]) == network_.host_of(ranks[i]))
        ++end;
      const auto here = static_cast<double>(end - i);
      const auto host = static_cast<std::size_t>(network_.host_of(ranks[i]));
      const double away = share * here * (m - here) * 2.0 / m;
      out_[host] += away;
      in_[host] += away;
      sums_[host] += away;
      between_ = between_ || away > 0.0;
      for (std::size_t k = i; k < end; ++k)
        rank_inside_[static_cast<std::size_t>(ranks[k])] += share * (here - 1.0) * 2.0 / m;
      inside_ = inside_ || here > 1.0;
      i = end;
    }
    sent_ += share * 2.0 * (m - 1.0);
    hops_ = 2.0;
    if (network_.host_of(ranks.front()) == network_.host_of(ranks.back())) return;
    const double window =
        static_cast<double>(kSumPieces * sum_chunk_bytes(static_cast<std::int64_t>(ranks.size()))) *
        m * network_.replica / share;
    window_ = window_ == 0.0 ? window : std::min(window_, window);
  }
  void reads(double buffers) { reads_ = std::max(reads_, buffers); }

  RoundCost cost() const {
    RoundCost cost;
    for (int h = 0; h < network_.hosts(); ++h) {
      const auto i = static_cast<std::size_t>(h);
      const double link = network_.bandwidth_of(h),
                   sums =
                       network_.sum_bandwidth > 0.0 ? std::min(network_.sum_bandwidth, link) : link;
      cost.per_byte =
          std::max(cost.per_byte, (std::max(out_[i], in_[i]) - sums_[i]) / link + sums_[i] / sums);
      cost.between_per_byte = std::max(cost.between_per_byte, out_[i]);
      cost.cpu_per_byte = std::max(
          cost.cpu_per_byte, (out_[i] + in_[i]) * network_.message_cpu / network_.ranks_per_host);
    }
    cost.per_byte = std::max(cost.per_byte, pair_ / network_.between.bandwidth);
    const double most_inside =
        rank_inside_.empty() ? 0.0 : *std::max_element(rank_inside_.begin(), rank_inside_.end());
    // Within a host messages are copied by a core, which cannot compute during that time unless
    // communication has its own cores.
    (network_.spare_cores ? cost.per_byte : cost.cpu_per_byte) +=
        most_inside / network_.inside.bandwidth;
    if (between_) {
      cost.latency += kHandshakeLatencies * hops_ * network_.between.latency;
      cost.window = window_;
    }
    if (inside_) cost.latency += hops_ * network_.inside.latency;
    cost.sent_per_byte = sent_ / (network_.ranks * network_.replica);
    cost.local_reads = reads_;
    return cost;
  }

 private:
  const NetworkModel& network_;
  /// The parts of out_ and in_ that are due to sums over groups
  std::vector<double> out_, in_, sums_, rank_inside_;
  double sent_ = 0.0, reads_ = 0.0, hops_ = 1.0, pair_ = 0.0, window_ = 0.0;
  bool inside_ = false, between_ = false;
};

bool one_host(const std::vector<int>& ranks, const NetworkModel& network) {
  return network.host_of(ranks.front()) == network.host_of(ranks.back());  // ascending
}

/// A round over nodes by shards: a reduce-scatter within every node, an exchange of each rank's
/// shard with its peers on other nodes, and an all-gather within nodes.
RoundCost cost_of_nodes(const Round& round, const NetworkModel& network) {
  const int per_node = round.ranks_per_node;
  const double shard = 1.0 / per_node;
  Load load(network);
  for (int first = 0; first < network.ranks; first += per_node) {
    std::vector<int> node(static_cast<std::size_t>(per_node));
    std::iota(node.begin(), node.end(), first);
    load.group_sum(node);
  }
  for (int i = 0; i < per_node; ++i) {
    for (const Group& group : round.groups) {
      std::vector<int> peers;
      for (const int node : group.ranks) peers.push_back(node * per_node + i);
      if (peers.size() > 1) load.group_sum(peers, shard);
    }
    for (std::size_t node = 0; node < round.rows.size(); ++node) {
      for (const auto& [other, weight] : round.rows[node]) {
        if (other != static_cast<int>(node) && weight != 0.0)
          load.message(other * per_node + i, static_cast<int>(node) * per_node + i, shard);
      }
    }
  }
  load.reads(1.0);
  return load.cost();
}

/// The longest chain of exchanges between hosts that wait for each other.
class Chain {
 public:
  explicit Chain(const NetworkModel& network)
      : network_(network), ends_(static_cast<std::size_t>(network.hosts()), 0) {}
  void add(const Round& round) {
    const std::vector<std::int64_t> before = ends_;
    const auto at = [&](int rank) { return static_cast<std::size_t>(network_.host_of(rank)); };
    const auto meet = [&](std::size_t host, std::int64_t other) {
      ends_[host] = std::max(ends_[host], std::max(before[host], other) + 1);
    };
    if (round.ranks_per_node > 1) ends_.assign(ends_.size(), longest() + 1);  // all hosts take part
    for (const Group& group : round.groups) {
      if (round.ranks_per_node > 1 || one_host(group.ranks, network_)) continue;
      std::int64_t latest = 0;
      for (const int rank : group.ranks) latest = std::max(latest, before[at(rank)]);
      for (const int rank : group.ranks) meet(at(rank), latest);
    }
    for (std::size_t i = 0; i < round.rows.size() && round.ranks_per_node <= 1; ++i) {
      const std::size_t to = at(static_cast<int>(i));
      for (const auto& [j, weight] : round.rows[i]) {
        if (at(j) == to || weight == 0.0) continue;
        meet(to, before[at(j)]);
        meet(at(j), 0);  // sends do not wait
      }
    }
    rounds_ += ends_ != before;
  }
  /// Number of rounds so far that had exchanges.
  std::int64_t rounds() const { return rounds_; }
  std::int64_t longest() const { return *std::max_element(ends_.begin(), ends_.end()); }

 private:
  const NetworkModel& network_;
  std::int64_t rounds_ = 0;
  std::vector<std::int64_t> ends_;  ///< by host: chain length up to its last exchange
};

/// Rounds until the first pair of round k meets again, at most `most`.
std::int64_t rounds_until_repeat(const Topology& topology, std::int64_t k, std::int64_t most) {
  int a = -1, b = -1;
  const auto look = [&](const Round& round) {
    const auto has = [](const std::vector<int>& ranks, int rank) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    };
    for (const Group& group : round.groups) {
      if (a < 0 && group.ranks.size() > 1) a = group.ranks[0], b = group.ranks[1];
      if (a >= 0 && has(group.ranks, a)) return has(group.ranks, b);
    }
    for (std::size_t i = 0; i < round.rows.size(); ++i) {
      for (const auto& [j, weight] : round.rows[i]) {
        if (j == static_cast<int>(i) || weight == 0.0) continue;
        if (a < 0) a = static_cast<int>(i), b = j;
        if (a == static_cast<int>(i) && b == j) return true;
      }
    }
    return false;
  };
  if (!look(topology.round(k))) return 1;
  std::int64_t rounds = 1;
  while (rounds < most && !look(topology.round(k + rounds))) ++rounds;
  return rounds;
}

}  // namespace

RoundCost cost_of(const Round& given, const NetworkModel& network, bool whole) {
  if (given.ranks_per_node > 1 && network.hosts() > 1 && !whole)
    return cost_of_nodes(given, network);
  const Round round = over_ranks(given);
  Load load(network);
  for (const Group& group : round.groups) {
    const auto m = static_cast<double>(group.ranks.size());
    if (group.ranks.size() < 2) continue;
    if (whole) {
      for (const int from : group.ranks) {
        for (const int to : group.ranks) {
          if (from != to) load.message(from, to, 1.0);
        }
      }
      load.reads(m - 1.0);
      continue;
    }
    const bool read_in_place = network.direct && one_host(group.ranks, network);
    load.reads(read_in_place ? m - 1.0 : 1.0);
    if (read_in_place) continue;
    if (group.ranks.size() == 2) {
      load.message(group.ranks[0], group.ranks[1], 1.0);
      load.message(group.ranks[1], group.ranks[0], 1.0);
    } else {
      load.group_sum(group.ranks);
    }
  }
  for (std::size_t i = 0; i < round.rows.size(); ++i) {
    const int rank = static_cast<int>(i);
    double terms = 0.0;
    for (const auto& [j, weight] : round.rows[i]) {
      if (j == rank || weight == 0.0) continue;
      terms += 1.0;
      if (!whole && network.direct && network.host_of(j) == network.host_of(rank)) continue;
      load.message(j, rank, 1.0);
    }
    load.reads(terms);
  }
  return load.cost();
}

RoundCost cost_of_all_reduce(const NetworkModel& network) {
  Load load(network);
  if (network.ranks > 1) {
    std::vector<int> everyone(static_cast<std::size_t>(network.ranks));
    std::iota(everyone.begin(), everyone.end(), 0);
    load.group_sum(everyone);
  }
  return load.cost();
}

RoundCost cost_of_all_reduce_by_nodes(const NetworkModel& network, int ranks_per_node) {
  Round round;
  round.ranks_per_node = ranks_per_node;
  round.groups.emplace_back();
  for (int node = 0; node < network.ranks / ranks_per_node; ++node)
    round.groups[0].ranks.push_back(node);
  return cost_of_nodes(round, network);
}

std::vector<RoundCost> costs_of(const Topology& topology, const NetworkModel& network, bool whole) {
  require(topology.ranks() == network.ranks, "planner", "a topology of {} ranks on a network of {}",
          topology.ranks(), network.ranks);
  std::vector<RoundCost> costs;
  const std::int64_t period = topology.period();
  const std::int64_t count = period > 0 ? std::min(period, kMostRounds) : kMostRounds;
  costs.reserve(static_cast<std::size_t>(count));
  Chain chain(network);
  for (std::int64_t k = 0; k < count; ++k) {
    const Round round = topology.round(k);
    costs.push_back(cost_of(round, network, whole));
    if (network.hosts() > 2 && network.between.latency > kLongLatency)
      costs.back().again = rounds_until_repeat(topology, k, count);
    chain.add(round);
  }
  if (network.hosts() < 2) return costs;
  const std::int64_t first = chain.longest(), busy = chain.rounds();
  // Now hosts are as far apart as they can be
  for (std::int64_t k = count; k < 2 * count; ++k) chain.add(topology.round(k));
  if (busy > 0) {
    for (RoundCost& cost : costs)
      cost.pace = static_cast<double>(chain.longest() - first) / static_cast<double>(busy);
  }
  return costs;
}

}  // namespace starling
