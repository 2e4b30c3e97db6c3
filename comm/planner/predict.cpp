#include "comm/planner/predict.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "comm/algorithm.h"
#include "comm/mixer.h"
#include "comm/mpi/window.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr std::int64_t kMostRounds = 64;  ///< of a long period, or of one without end
/// Seconds, from which on a connection that begins again after it was idle is felt
constexpr double kLongLatency = 2e-3;
constexpr double kSlack = 0.5;  ///< of the computation, where exchanges fit behind it
/// Steps from one exchange to the next that are laid out; more of them are computation alone
constexpr std::int64_t kMostInterval = 16;

/// Bytes per byte of bucket that ranks and hosts send in one round.
class Load {
 public:
  explicit Load(const NetworkModel& network)
      : network_(network),
        out_(static_cast<std::size_t>(network.hosts()), 0.0),
        in_(out_),
        sums_(out_),
        rank_inside_(static_cast<std::size_t>(network.ranks), 0.0) {}

  /// `from` sends `share` of the bucket to `to`, once in a round.
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
  /// A mean or sum over a group by messages: every member sums a part of it and sends the result to
  /// the others.
  void group_sum(const std::vector<int>& ranks, double share = 1.0) {
    const auto m = static_cast<double>(ranks.size());
    for (std::size_t i = 0; i < ranks.size();) {  // ascending: host by host
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
        m / share;
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
    // Inside a host a core copies: what it does there it does not compute meanwhile, unless it is
    // one of its own.
    (network_.spare_cores ? cost.per_byte : cost.cpu_per_byte) +=
        most_inside / network_.inside.bandwidth;
    if (between_) {
      cost.latency += kHandshakeLatencies * hops_ * network_.between.latency;
      cost.window = window_;
    }
    if (inside_) cost.latency += hops_ * network_.inside.latency;
    cost.sent_per_byte = sent_ / network_.ranks;
    cost.local_reads = reads_;
    return cost;
  }

 private:
  const NetworkModel& network_;
  /// `sums_`: what sums over groups have of out_ and of in_
  std::vector<double> out_, in_, sums_, rank_inside_;
  double sent_ = 0.0, reads_ = 0.0, hops_ = 1.0, pair_ = 0.0, window_ = 0.0;
  bool inside_ = false, between_ = false;
};

bool one_host(const std::vector<int>& ranks, const NetworkModel& network) {
  return network.host_of(ranks.front()) == network.host_of(ranks.back());  // ascending
}

struct TimeLine {
  const StepModel& step;
  const NetworkModel& network;
  std::vector<PlannedBucket> buckets;
  double now = 0.0, link_free = 0.0, exposed = 0.0;

  /// Seconds of the bucket's update that reads `buffers` more than its own.
  double update(const PlannedBucket& bucket, double buffers) const {
    return bucket.bytes * (step.update_traffic + buffers) / network.memory_bandwidth +
           step.matrix_seconds(bucket.matrix_flops);
  }
  /// Numbers that travel in fewer bytes are written for it, and all that the update mixes, the own
  /// ones too, is made of them again.
  double recoding(double buffers) const {
    if (step.gossip_wire >= 1.0 || buffers == 0.0) return 0.0;
    return 1.0 + (1.0 + step.gossip_wire) * (2.0 + buffers);
  }
  double transfer(const PlannedBucket& bucket, const RoundCost& cost, double wire) {
    if (cost.per_byte == 0.0 && cost.cpu_per_byte == 0.0 && cost.latency == 0.0) return now;
    const double bytes = bucket.bytes * wire, moving = bytes * cost.per_byte;
    link_free = std::max(link_free, now) + moving;
    const double arrival = std::max(link_free + cost.latency, now + moving + cost.waiting(bytes));
    // The computation loses time beside the transfer, but not where it would wait for this transfer
    // anyway.
    if (!network.spare_cores) now += bytes * cost.cpu_per_byte;
    return std::max(arrival, now);
  }
  void wait_until(double time) {
    if (time <= now) return;
    exposed += time - now;
    now = time;
  }
  /// Runs both passes; calls f(b, the bucket) when bucket b's last gradient is there.
  template <class F>
  void passes(F&& f) {
    now += step.forward;
    double done = 0.0;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      now += (buckets[b].ready - done) * step.backward;
      done = buckets[b].ready;
      f(b, buckets[b]);
    }
    now += (1.0 - done) * step.backward;
  }
};

}  // namespace

void StepModel::exchange_by(const MixerKind& mixer) {
  gossip_wire = mixer.wire;
  gossip_whole = mixer.whole;
}

double StepModel::matrix_flops() const {
  double sum = 0.0;
  for (const PlannedTensor& tensor : tensors) sum += tensor.matrix_flops;
  return sum;
}

StepModel even_step(double parameters, double seconds) {
  constexpr int kTensors = 64;
  StepModel step;
  step.forward = seconds / 3.0;
  step.backward = seconds - step.forward;
  for (int i = 0; i < kTensors; ++i)
    step.tensors.push_back({parameters * 4.0 / kTensors, (i + 1.0) / kTensors});
  return step;
}

std::vector<PlannedBucket> planned_buckets(const StepModel& step, double bucket_bytes) {
  std::vector<PlannedBucket> buckets;
  PlannedBucket open;
  for (const PlannedTensor& tensor : step.tensors) {
    open.bytes += tensor.bytes;
    open.ready = std::max(open.ready, tensor.ready);
    open.matrix_flops += tensor.matrix_flops;
    if (open.bytes >= bucket_bytes) {
      buckets.push_back(open);
      open = {.ready = open.ready};
    }
  }
  if (open.bytes > 0.0) buckets.push_back(open);
  return buckets;
}

namespace {

/// A round over nodes by shards: a reduce-scatter inside every node, each rank's shard to its peers
/// on other nodes, an all-gather inside.
RoundCost cost_of_nodes(const Round& round, const NetworkModel& network) {
  const int per_node = round.ranks_per_node;
  const double shard = 1.0 / per_node;
  Load load(network);
  for (int first = 0; first < network.ranks; first += per_node) {
    std::vector<int> node(static_cast<std::size_t>(per_node));
    for (int i = 0; i < per_node; ++i) node[static_cast<std::size_t>(i)] = first + i;
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
    for (std::size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
    load.group_sum(everyone);
  }
  return load.cost();
}

namespace {

RoundCost cost_of_all_reduce_by_nodes(const NetworkModel& network, int ranks_per_node) {
  Round round;
  round.ranks_per_node = ranks_per_node;
  round.groups.emplace_back();
  for (int node = 0; node < network.ranks / ranks_per_node; ++node)
    round.groups[0].ranks.push_back(node);
  return cost_of_nodes(round, network);
}

}  // namespace

double compute_alone(const StepModel& step, const NetworkModel& network) {
  double bytes = 0.0;
  for (const PlannedTensor& tensor : step.tensors) bytes += tensor.bytes;
  return step.forward + step.backward + bytes * step.update_traffic / network.memory_bandwidth +
         step.matrix_seconds(step.matrix_flops());
}

namespace {

/// Exchanges that wait for each other, of those between hosts: how many stand in a row, after some
/// rounds.
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
    if (round.ranks_per_node > 1) ends_.assign(ends_.size(), longest() + 1);  // all take part
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
        meet(at(j), 0);  // sends, and waits for nobody
      }
    }
    rounds_ += ends_ != before;
  }
  /// Number of rounds so far in which there were exchanges.
  std::int64_t rounds() const { return rounds_; }
  std::int64_t longest() const { return *std::max_element(ends_.begin(), ends_.end()); }

 private:
  const NetworkModel& network_;
  std::int64_t rounds_ = 0;
  std::vector<std::int64_t> ends_;  ///< by host: of the last exchange that it took part in
};

/// Rounds until the first two that meet in round k do so again, `most` at most.
std::int64_t meet_again(const Topology& topology, std::int64_t k, std::int64_t most) {
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

/// Seconds that an exchange takes longer over a connection that was idle: TCP begins again with ten
/// segments, having halved its window for each retransmission time-out without use (RFC 5681, 4.1;
/// RFC 2861), and needs a round trip for each doubling.
double restart_seconds(const NetworkModel& network, double idle) {
  constexpr double kFirstWindow = 14600.0, kHalvings = 9.0;  // as measured
  const double round_trip = 2.0 * network.between.latency,
               needed = std::min(kPairWindow, network.between.bandwidth * round_trip);
  const double halvings = idle / (0.2 + round_trip);
  return round_trip * std::log2(std::max(1.0, needed / kFirstWindow)) *
         std::min(1.0, halvings / kHalvings);
}

}  // namespace

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
      costs.back().again = meet_again(topology, k, count);
    chain.add(round);
  }
  if (network.hosts() < 2) return costs;
  const std::int64_t first = chain.longest(), busy = chain.rounds();
  // Now hosts are as far apart as they get
  for (std::int64_t k = count; k < 2 * count; ++k) chain.add(topology.round(k));
  if (busy > 0) {
    for (RoundCost& cost : costs)
      cost.pace = static_cast<double>(chain.longest() - first) / static_cast<double>(busy);
  }
  return costs;
}

Prediction predict_gossip(const std::vector<RoundCost>& costs, const NetworkModel& network,
                          const StepModel& step, double bucket_bytes, bool overlap,
                          std::int64_t interval, int tensors) {
  require(!costs.empty(), "planner", "gossip without rounds");
  const double wire = step.gossip_wire * tensors;
  TimeLine line{step, network, planned_buckets(step, bucket_bytes)};
  std::vector<double> arrival(line.buckets.size(), 0.0);
  const auto rounds = static_cast<std::int64_t>(costs.size());
  // One period to come into step, then whole periods that count.
  const std::int64_t apart = std::min(interval, kMostInterval);
  const std::int64_t warm = std::max<std::int64_t>(rounds, 4) * apart,
                     counted = rounds * std::max<std::int64_t>(1, 16 / rounds) * apart;
  double start = 0.0;
  Prediction result;
  for (std::int64_t t = 0; t < warm + counted; ++t) {
    if (t == warm) {
      start = line.now;
      line.exposed = 0.0;
    }
    const bool mixes = t % apart == 0, starts = (t + 1) % apart == 0;
    const RoundCost& last = costs[static_cast<std::size_t>((t / apart + rounds - 1) % rounds)];
    const RoundCost& next = costs[static_cast<std::size_t>(t / apart % rounds)];
    line.passes([&](std::size_t b, const PlannedBucket& bucket) {
      if (mixes) line.wait_until(arrival[b]);
      line.now += line.update(
          bucket, mixes ? tensors * (last.local_reads + line.recoding(last.local_reads)) : 0.0);
      if (!starts) return;
      arrival[b] = line.transfer(bucket, next, wire);
      if (!overlap) line.wait_until(arrival[b]);
      if (t >= warm) {
        result.sent += bucket.bytes * wire * next.sent_per_byte;
        result.between_hosts += bucket.bytes * wire * next.between_per_byte;
      }
    });
  }
  const auto steps = static_cast<double>(counted);
  const double part = static_cast<double>(apart) / static_cast<double>(interval),
               alone = compute_alone(step, network);
  const double pace = costs[0].pace;
  result.step = alone + ((line.now - start) / steps - alone) * part * pace;
  result.exposed = line.exposed / steps * part * pace;
  if (network.between.latency > kLongLatency) {
    // All begin with cold connections. Longer steps leave them idle for longer: from there to where
    // it stays.
    const double warm = result.step, slack = result.exposed > 0.0 ? 0.0 : kSlack * alone;
    double late = 0.0;
    for (int i = 0; i < 16; ++i) {
      double more = 0.0;
      for (const RoundCost& cost : costs) {
        const double idle = static_cast<double>((cost.again - 1) * interval) * result.step;
        if (cost.again > 1)
          more += restart_seconds(network, i == 0 ? 1e9 : idle) / static_cast<double>(rounds);
      }
      late = std::max(0.0, more - slack) * pace / static_cast<double>(interval);
      result.step = warm + late;
    }
    result.exposed += late;
  }
  result.sent *= part / steps;
  result.between_hosts *= part / steps;
  return result;
}

namespace {

/// A mean over all ranks of all buckets.
struct MeanOfAll {
  double transfer = 0.0, cpu = 0.0;  ///< seconds, and of them those that a computing rank loses
  double bytes = 0.0, sent = 0.0, between = 0.0;

  MeanOfAll(const NetworkModel& network, const StepModel& step, double bucket_bytes) {
    const RoundCost cost = cost_of_all_reduce(network);
    double waiting = 0.0;
    for (const PlannedBucket& bucket : planned_buckets(step, bucket_bytes)) {
      bytes += bucket.bytes;
      waiting = std::max(waiting, cost.waiting(bucket.bytes));
    }
    transfer = waiting + bytes * cost.per_byte;
    if (!network.spare_cores) cpu = bytes * cost.cpu_per_byte;
    sent = bytes * cost.sent_per_byte;
    between = bytes * cost.between_per_byte;
  }
};

}  // namespace

Prediction predict_averages(const NetworkModel& network, const StepModel& step, double bucket_bytes,
                            std::int64_t period, std::int64_t hidden) {
  const MeanOfAll mean(network, step, bucket_bytes);
  const double alone = compute_alone(step, network), steps = static_cast<double>(period);
  Prediction result;
  result.exposed = std::max(0.0, mean.transfer - static_cast<double>(hidden) * alone) / steps;
  result.step = alone + result.exposed + mean.cpu / steps;
  result.sent = mean.sent / steps;
  result.between_hosts = mean.between / steps;
  return result;
}

Prediction predict_asynchronous(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double interval) {
  // Passes over the parameters: a copy, and the mean, the copy and the parameters into the
  // parameters
  constexpr double kPasses = 6.0;
  const MeanOfAll mean(network, step, bucket_bytes);
  const double alone = compute_alone(step, network),
               own = mean.cpu + kPasses * mean.bytes / network.memory_bandwidth;
  // Averages begin and end between steps. What they take of the computation makes steps longer, so
  // that fewer fit in.
  const double steps = std::max(1.0, std::ceil((interval + mean.transfer - own) / alone));
  return {.step = alone + own / steps,
          .sent = mean.sent / steps,
          .between_hosts = mean.between / steps};
}

Prediction predict_all_reduce(const NetworkModel& network, const StepModel& step,
                              double bucket_bytes, bool overlap, int ranks_per_node) {
  const bool by_nodes = ranks_per_node > 1 && ranks_per_node < network.ranks;
  const RoundCost cost =
      by_nodes ? cost_of_all_reduce_by_nodes(network, ranks_per_node) : cost_of_all_reduce(network);
  TimeLine line{step, network, planned_buckets(step, bucket_bytes)};
  std::vector<double> arrival(line.buckets.size(), 0.0);
  Prediction result;
  line.passes([&](std::size_t b, const PlannedBucket& bucket) {
    arrival[b] = line.transfer(bucket, cost, 1.0);
    if (!overlap) line.wait_until(arrival[b]);
    result.sent += bucket.bytes * cost.sent_per_byte;
    result.between_hosts += bucket.bytes * cost.between_per_byte;
  });
  for (std::size_t b = 0; b < line.buckets.size(); ++b) {
    line.wait_until(arrival[b]);
    line.now += line.update(line.buckets[b], 0.0);
  }
  result.step = line.now;
  result.exposed = line.exposed;
  return result;
}

Prediction predict_encoded_mean(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double wire) {
  RoundCost half = cost_of_all_reduce(network);  // its other half has as many bytes
  for (double* cost : {&half.latency, &half.per_byte, &half.cpu_per_byte, &half.sent_per_byte,
                       &half.between_per_byte})
    *cost /= 2.0;
  TimeLine line{step, network, planned_buckets(step, bucket_bytes)};
  std::vector<double> arrival(line.buckets.size(), 0.0);
  // A byte of numbers is read and its code written, and the other way round; what travels back
  // belongs to all chunks.
  const auto recode = [&](const PlannedBucket& bucket) {
    line.now += bucket.bytes * (1.0 + wire) / network.memory_bandwidth;
  };
  Prediction result;
  line.passes([&](std::size_t b, const PlannedBucket& bucket) {
    recode(bucket);
    arrival[b] = line.transfer(bucket, half, wire);
    result.sent += 2.0 * bucket.bytes * wire * half.sent_per_byte;
    result.between_hosts += 2.0 * bucket.bytes * wire * half.between_per_byte;
  });
  for (std::size_t b = 0; b < line.buckets.size(); ++b) {
    line.wait_until(arrival[b]);
    recode(line.buckets[b]);
    arrival[b] = line.transfer(line.buckets[b], half, wire);
  }
  for (std::size_t b = 0; b < line.buckets.size(); ++b) {
    line.wait_until(arrival[b]);
    recode(line.buckets[b]);
    line.now += line.update(line.buckets[b], 0.0);
  }
  result.step = line.now;
  result.exposed = line.exposed;
  return result;
}

Prediction predict(const AlgorithmPlan& plan, const std::vector<RoundCost>& rounds,
                   const NetworkModel& network, const StepModel& step, double bucket_bytes) {
  const auto of = [&](const PlannedExchange& exchange) {
    const auto& [what, every, hidden, pause, ranks_per_node] = exchange;
    if (what == PlannedExchange::kGradients) {
      const std::int64_t per_node = ranks_per_node > 0 ? ranks_per_node : network.ranks_per_host;
      return predict_all_reduce(network, step, bucket_bytes, hidden > 0,
                                static_cast<int>(per_node));
    }
    if (what == PlannedExchange::kGradientChunks)
      return predict_encoded_mean(network, step, bucket_bytes, plan.messages.wire);
    if (what == PlannedExchange::kRounds) {
      return predict_gossip(rounds, network, step, bucket_bytes, hidden > 0, every,
                            plan.messages.mixed);
    }
    return pause ? predict_asynchronous(network, step, bucket_bytes, *pause)
                 : predict_averages(network, step, bucket_bytes, every, hidden);
  };
  const std::vector<PlannedExchange>& exchanges = plan.cost.exchanges;
  require(!exchanges.empty(), "planner", "{} does not say what it exchanges", plan.label());
  Prediction sum = of(exchanges[0]);
  for (std::size_t k = 1; k < exchanges.size(); ++k) {
    const Prediction more = of(exchanges[k]);
    sum.step += more.step - compute_alone(step, network);
    sum.exposed += more.exposed;
    sum.sent += more.sent;
    sum.between_hosts += more.between_hosts;
  }
  return sum;
}

}  // namespace starling
