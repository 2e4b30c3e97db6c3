#include "comm/planner/measure_network.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "comm/mpi/window.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

double quantile(std::vector<double> values, double part) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size()) * part);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }
/// Of an exchange that takes longer whenever something else runs on a core that it needs.
double undisturbed(std::vector<double> times) { return quantile(std::move(times), 0.25); }

/// Rounds of pairs, in which every host meets every other; above 16 hosts those at distance 1, 2,
/// 4, … alone. partner[h] = -1: idle.
std::vector<std::vector<int>> host_pairings(int hosts) {
  std::vector<std::vector<int>> rounds;
  if (hosts < 2) return rounds;
  const auto add = [&](const std::function<int(int)>& partner_of) {
    std::vector<int> partners(static_cast<std::size_t>(hosts), -1);
    for (int h = 0; h < hosts; ++h) {
      const int other = partner_of(h);
      if (other >= 0 && other < hosts && other != h) partners[static_cast<std::size_t>(h)] = other;
    }
    rounds.push_back(std::move(partners));
  };
  if (hosts <= 16) {  // the circle method: host `last` stays, the others turn
    const int even = hosts + hosts % 2, last = even - 1;
    for (int r = 0; r < last; ++r) {
      add([&](int h) {
        const int other = ((2 * r - h) % last + last) % last;
        return h == last ? r : other == h ? last : other;
      });
    }
  } else {
    for (int distance = 1; distance < hosts; distance *= 2) {
      for (const int phase : {0, 1}) {
        add([&](int h) { return h / distance % 2 == phase ? h + distance : h - distance; });
      }
    }
  }
  // Only what both sides agree on is a pair.
  for (auto& partners : rounds) {
    for (int h = 0; h < hosts; ++h) {
      int& other = partners[static_cast<std::size_t>(h)];
      if (other >= 0 && partners[static_cast<std::size_t>(other)] != h) other = -1;
    }
  }
  return rounds;
}

class Meter {
 public:
  Meter(Transport& transport, Backend& backend, const MeasureSettings& settings)
      : transport_(transport), backend_(backend), settings_(settings) {}

  NetworkModel measure() {
    NetworkModel model;
    model.ranks = transport_.size();
    model.ranks_per_host = check_layout();
    model.direct = settings_.direct;
    model.spare_cores = settings_.spare_cores;
    model.memory_bandwidth = memory_bandwidth();
    const int rank = transport_.rank(), here = rank / model.ranks_per_host,
              local = rank % model.ranks_per_host;
    if (model.ranks_per_host > 1) {
      // Neighbours in pairs.
      const int peer = (local ^ 1) < model.ranks_per_host ? rank - local + (local ^ 1) : -1;
      model.inside = agreed(link_to(peer, 0.15));
    }
    if (model.hosts() > 1) between(model, here, local);
    return model;
  }

 private:
  int check_layout() {
    const std::vector<std::string> locals = transport_.world().all_gather(
        fmt::format("{} {}", transport_.world().local_rank(), transport_.world().local_size()));
    int per_host = 0;
    for (std::size_t r = 0; r < locals.size(); ++r) {
      int local = 0, size = 0;
      if (std::sscanf(locals[r].c_str(), "%d %d", &local, &size) != 2)
        fail(ExitCode::kInternal, "planner", "rank {} said nothing", r);
      if (r == 0) per_host = size;
      if (size != per_host || local != static_cast<int>(r) % per_host) {
        fail(ExitCode::kUsage, "planner",
             "rank {} is number {} of {} on its host; ranks must be numbered host by host, as many "
             "on each (mpirun --map-by slot)",
             r, local, size);
      }
    }
    return per_host;
  }

  Tensor buffer(std::int64_t bytes) {
    Tensor tensor(backend_, Shape{std::max<std::int64_t>(bytes / 4, 32)}, DType::kFloat32);
    backend_.fill(tensor, 1.0);
    return tensor;
  }

  enum class Way { kBoth, kOut, kIn };

  /// Seconds of one exchange with `peer`, undisturbed, of `count`; ranks without a peer look on.
  double exchange_seconds(int peer, const Tensor& send, const Tensor& receive, int count,
                          Way way = Way::kBoth) {
    return exchange_seconds(peer < 0 ? std::vector<int>{} : std::vector{peer}, send, {receive},
                            count, way);
  }
  /// Seconds of an exchange with several peers at once; a tensor of `received` for each.
  double exchange_seconds(const std::vector<int>& peers, const Tensor& send,
                          std::vector<Tensor> received, int count, Way way = Way::kBoth) {
    transport_.world().barrier();
    if (peers.empty()) return 0.0;
    Exchange exchange;
    exchange.kind = Exchange::Kind::kNeighbours;
    if (way != Way::kIn) exchange.send_to = peers;
    if (way != Way::kOut) {
      exchange.receive_from = peers;
      exchange.weights.assign(peers.size(), 1.0 / static_cast<double>(peers.size() + 1));
    } else {
      received.clear();
    }
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const double start = settings_.now();
      transport_.wait(transport_.start_exchange(exchange, send, received, {-1, 0, i}));
      times.push_back(settings_.now() - start);
    }
    // Two exchanges together tell: a rank that began a latency later than its peer does not wait in
    // every second one, and the peer waits twice as long.
    for (std::size_t i = 0; i + 1 < times.size(); ++i) times[i] = (times[i] + times[i + 1]) / 2.0;
    if (times.size() > 1) times.pop_back();
    return undisturbed(std::move(times));
  }

  /// Latency and bandwidth with one peer, {0, 0} without; `budget` seconds. Collective: all ranks
  /// take part in the same number of calls.
  LinkModel link_to(int peer, double budget) {
    const Tensor small_send = buffer(128), small_receive = buffer(128);
    // Connections are made with the first message
    (void)exchange_seconds(peer, small_send, small_receive, 3);
    LinkModel link;
    link.latency = exchange_seconds(peer, small_send, small_receive, 15);
    const double rate = rate_of(link, budget, 1.0, [&](std::int64_t bytes) {
      return exchange_seconds(peer, buffer(bytes), buffer(bytes), 3);
    });
    if (peer >= 0) link.bandwidth = rate;
    return link;
  }

  /// Bytes a second each way of this host's link with several peers at once, which may be more than
  /// one connection carries: a peer is sent no more than some windows before it answers. 0 on ranks
  /// that look on. Collective.
  double with_several_peers(const NetworkModel& model, int here, int local, double budget) {
    std::set<int> peers;
    for (int distance = 1; distance <= kSeveral / 2; ++distance) {
      for (const int host : {here + distance, here + model.hosts() - distance})
        peers.insert(host % model.hosts() * model.ranks_per_host);
    }
    peers.erase(transport_.rank());
    if (local != 0) peers.clear();
    return rate_of(
        model.between, budget, static_cast<double>(std::min(kSeveral, model.hosts() - 1)),
        [&](std::int64_t bytes) {
          const std::vector<Tensor> received(peers.size(), buffer(bytes));
          return exchange_seconds({peers.begin(), peers.end()}, buffer(bytes), received, 3);
        });
  }
  /// Bandwidth of sums over all ranks, several at once; the same on every rank. Collective.
  double with_several_sums(const NetworkModel& model, double budget) {
    const double here = model.ranks_per_host, all = model.ranks;
    // Bytes that a host sends for each byte that is summed, as the planner counts it
    const double sent = kSeveral * here * (all - here) * 2.0 / all;
    // What is longer waits for answers in between
    const std::int64_t window = kSumPieces * model.ranks * sum_chunk_bytes(model.ranks);
    const double rate = rate_of(model.between, budget, sent, [&](std::int64_t bytes) {
      std::vector<Tensor> sums;
      const std::int64_t each = std::min(bytes, window);
      for (std::int64_t i = 0; i < kSeveral * bytes / each; ++i) sums.push_back(buffer(each));
      std::vector<double> times;
      for (int repeat = 0; repeat < 3; ++repeat) {
        transport_.world().barrier();
        const double start = settings_.now();
        std::vector<Ticket> tickets;
        for (const Tensor& sum : sums)
          tickets.push_back(
              transport_.start_sum(sum, sum, {-1, static_cast<int>(tickets.size()), repeat}));
        for (const Ticket ticket : tickets) transport_.wait(ticket);
        times.push_back(settings_.now() - start);
      }
      return undisturbed(std::move(times));
    });
    double slowest = rate > 0.0 ? 1.0 / rate : 0.0;
    transport_.world().max(&slowest, 1);
    return slowest > 0.0 ? 1.0 / slowest : 0.0;
  }
  /// Bytes a second where seconds(bytes) are taken for `sent` times as many: larger and larger,
  /// until that is a part of the budget and much more than latencies. What the last four times as
  /// many take longer counts, so that no latency does.
  double rate_of(const LinkModel& link, double budget, double sent,
                 const std::function<double(std::int64_t)>& seconds) {
    double took = 0.0, before = 0.0, fewer = 0.0;
    for (std::int64_t bytes = 128 << 10;; bytes *= 4) {
      took = seconds(bytes);
      const double alone = std::min(0.7 * took, before > 0.0 ? before : link.latency);
      double agreed[2] = {took, 12.0 * link.latency};
      transport_.world().max(agreed, 2);
      if (agreed[0] > std::max(budget / 5.0, agreed[1]) || bytes >= (8 << 20))
        return took > 0.0 ? sent * (static_cast<double>(bytes) - fewer) / (took - alone) : 0.0;
      before = took, fewer = static_cast<double>(bytes);
    }
  }

  /// How many times as long both directions together take as one alone, as the receiver of that one
  /// sees it (a sender is done when its last bytes are in the socket); 0 on other ranks.
  /// Collective.
  double both_over_one(int peer, const LinkModel& link, double budget) {
    // Bytes that fill a part of the budget, the same on all ranks: what a few fragments and their
    // handshakes take says nothing.
    double most =
        peer < 0 ? 0.0 : std::clamp(link.bandwidth * budget / 8.0, 64.0 * 1024, 16.0 * 1024 * 1024);
    transport_.world().max(&most, 1);
    const Tensor send = buffer(static_cast<std::int64_t>(most)),
                 receive = buffer(static_cast<std::int64_t>(most));
    const double both = exchange_seconds(peer, send, receive, 3);
    const bool receives = peer >= 0 && peer < transport_.rank();
    const double one = exchange_seconds(peer, send, receive, 3, receives ? Way::kIn : Way::kOut);
    return receives ? both / std::max(one, 1e-9) : 0.0;
  }

  /// Passes over numbers that stay in the first cache, about `seconds` of them: work of the
  /// processor alone.
  class Work {
   public:
    Work(Meter& meter, double seconds) : backend_(meter.backend_), settings_(meter.settings_) {
      sum_.in[0] = sum_.in[1] = meter.buffer(8192);
      sum_.weight[0] = sum_.weight[1] = 0.5;
      sum_.terms = 2;
      sum_.out = meter.buffer(8192);
      double took = 0.0;
      while (took < seconds / 8.0) {
        passes_ *= 2;
        took = run();
      }
      passes_ = static_cast<std::int64_t>(static_cast<double>(passes_) * seconds / took) + 1;
    }
    /// Seconds that it took.
    double run() const {
      const double start = settings_.now();
      for (std::int64_t i = 0; i < passes_; ++i) backend_.weighted_sum(sum_);
      backend_.synchronize();
      return settings_.now() - start;
    }

   private:
    Backend& backend_;
    const MeasureSettings& settings_;
    WeightedSum sum_;
    std::int64_t passes_ = 64;
  };

  /// Seconds of a core that one byte between hosts, sent or received, takes from what the host's
  /// ranks compute meanwhile: all compute, alone and beside an exchange of their first ranks.
  /// Collective.
  double message_cost(int peer, const LinkModel& link, double budget) {
    const double seconds = std::clamp(budget / 10.0, 0.01, 0.2);
    const Work work(*this, seconds);
    double bytes =
        peer < 0 ? 0.0
                 : std::clamp(0.6 * seconds * link.bandwidth, 64.0 * 1024, 64.0 * 1024 * 1024);
    transport_.world().max(&bytes, 1);
    // So little is lost in the noise, and beside so slow a network in its waits
    if (bytes < 2 << 20) return 0.0;
    const Tensor send = buffer(static_cast<std::int64_t>(bytes)),
                 receive = buffer(static_cast<std::int64_t>(bytes));
    Exchange exchange;
    exchange.kind = Exchange::Kind::kNeighbours;
    if (peer >= 0) exchange.send_to = exchange.receive_from = {peer};
    exchange.weights = {0.5};
    std::vector<double> alone, beside;
    for (int i = 0; i < 5; ++i) {  // in turn, as a machine's speed changes
      transport_.world().barrier();
      alone.push_back(work.run());
      transport_.world().barrier();
      const Ticket ticket =
          peer >= 0 ? transport_.start_exchange(exchange, send, {receive}, {-1, 0, i}) : 0;
      beside.push_back(work.run());
      if (peer >= 0) transport_.wait(ticket);
    }
    double slower[2] = {std::max(0.0, median(beside) - median(alone)), peer >= 0 ? 1.0 : 0.0};
    transport_.world().sum(slower, 2);
    return slower[1] > 0.0 ? slower[0] / slower[1] / (2.0 * bytes) : 0.0;
  }

  /// The slowest pair's, on every rank; those without a peer do not count.
  LinkModel agreed(const LinkModel& mine) {
    double values[2] = {mine.latency, mine.bandwidth > 1.0 ? 1.0 / mine.bandwidth : 0.0};
    transport_.world().max(values, 2);
    return {values[0], values[1] > 0.0 ? 1.0 / values[1] : 1e12};
  }

  static constexpr int kSeveral = 6;  ///< peers, or sums, at once

  void between(NetworkModel& model, int here, int local) {
    const auto rounds = host_pairings(model.hosts());
    const double budget =
        std::max(0.05, settings_.seconds * 0.4 / static_cast<double>(rounds.size()));
    std::vector<double> bandwidth(static_cast<std::size_t>(model.hosts()), 0.0);
    std::vector<double> latency, both;
    bool first = true;
    const double start = settings_.now();
    for (const auto& partners : rounds) {
      double took = settings_.now() - start;
      transport_.world().max(&took, 1);
      // Each has been in a pair after two rounds, or after two times so many where they are in
      // pairs at growing distances.
      if (&partners - rounds.data() >= 2 && took > settings_.seconds * 0.6) break;
      const int other = local == 0 ? partners[static_cast<std::size_t>(here)] : -1;
      const int peer = other < 0 ? -1 : other * model.ranks_per_host;
      const LinkModel link = link_to(peer, budget);
      const double times = both_over_one(peer, link, budget);
      if (std::exchange(first, false))
        model.message_cpu = message_cost(peer, link, settings_.seconds * 0.2);
      if (other < 0) continue;
      if (times > 0.0) both.push_back(times);
      bandwidth[static_cast<std::size_t>(here)] =
          std::max(bandwidth[static_cast<std::size_t>(here)], link.bandwidth);
      latency.push_back(link.latency);
    }
    transport_.world().max(bandwidth.data(), bandwidth.size());
    double typical = latency.empty() ? 0.0 : median(latency);
    transport_.world().max(&typical, 1);
    model.between = {typical, median(bandwidth)};
    if (model.hosts() > 2) {  // two hosts have no more peers than one
      double& mine = bandwidth[static_cast<std::size_t>(here)];
      mine = std::max(mine, with_several_peers(model, here, local, settings_.seconds * 0.2));
      transport_.world().max(bandwidth.data(), bandwidth.size());
    }
    model.sum_bandwidth = with_several_sums(model, settings_.seconds * 0.2);
    for (double& link : bandwidth) link = std::max(link, model.sum_bandwidth);
    model.between_measured = true;
    double duplex = both.empty() ? 0.0 : median(std::move(both));
    transport_.world().max(&duplex, 1);
    model.both_directions = std::max(1.0, duplex);
    model.host_bandwidth = bandwidth;
    constexpr double kNothing = 1e-10;  // a tenth of a nanosecond of a core for a byte
    if (model.message_cpu > kNothing) model.spare_cores = false;
  }

  /// Bytes a second that a pass over three arrays moves, all ranks at once; the slowest rank's.
  double memory_bandwidth() {
    const std::int64_t bytes = 32 << 20;
    WeightedSum sum;
    sum.in[0] = buffer(bytes);
    sum.in[1] = buffer(bytes);
    sum.weight[0] = sum.weight[1] = 0.5;
    sum.terms = 2;
    sum.out = buffer(bytes);
    std::vector<double> times;
    transport_.world().barrier();
    for (int i = 0; i < 5; ++i) {
      const double start = settings_.now();
      backend_.weighted_sum(sum);
      backend_.synchronize();
      times.push_back(settings_.now() - start);
    }
    double seconds = median(std::move(times));
    transport_.world().max(&seconds, 1);
    return 3.0 * static_cast<double>(bytes) / seconds;
  }

  Transport& transport_;
  Backend& backend_;
  MeasureSettings settings_;
};

}  // namespace

NetworkModel measure_network(Transport& transport, Backend& backend,
                             const MeasureSettings& settings) {
  return Meter(transport, backend, settings).measure();
}

}  // namespace starling
