#include "comm/planner/measure_network.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "comm/engine/window.h"
#include "comm/transports/strided.h"
#include "core/error.h"
#include "core/host.h"
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
/// The lower quartile of repeated timings: other work on the machine only ever makes them longer.
double typical_time(std::vector<double> times) { return quantile(std::move(times), 0.25); }

/// A schedule of pairs: partner[h] of host h in each round, or -1 if it is idle. Up to 16 hosts
/// every pair meets once; with more, only hosts at distances 1, 2, 4, ….
std::vector<std::vector<int>> host_pairings(int hosts) {
  std::vector<std::vector<int>> rounds;
  if (hosts < 2) return rounds;
  const auto add_round = [&](const std::function<int(int)>& partner_of) {
    std::vector<int> partners(static_cast<std::size_t>(hosts), -1);
    for (int h = 0; h < hosts; ++h) {
      const int other = partner_of(h);
      if (other >= 0 && other < hosts && other != h) partners[static_cast<std::size_t>(h)] = other;
    }
    rounds.push_back(std::move(partners));
  };
  if (hosts <= 16) {  // a round-robin tournament by the circle method, with host `last` fixed
    const int even = hosts + hosts % 2, last = even - 1;
    for (int r = 0; r < last; ++r) {
      add_round([&](int h) {
        const int other = ((2 * r - h) % last + last) % last;
        return h == last ? r : other == h ? last : other;
      });
    }
  } else {
    for (int distance = 1; distance < hosts; distance *= 2) {
      for (const int phase : {0, 1}) {
        add_round([&](int h) { return h / distance % 2 == phase ? h + distance : h - distance; });
      }
    }
  }
  // Drop pairs that only one side has.
  for (auto& partners : rounds) {
    for (int h = 0; h < hosts; ++h) {
      int& other = partners[static_cast<std::size_t>(h)];
      if (other >= 0 && partners[static_cast<std::size_t>(other)] != h) other = -1;
    }
  }
  return rounds;
}

/// Every method is collective: all ranks call it, including those without a peer. With replicas
/// those of one measure alike, each with its like in other replicas.
class Meter {
 public:
  Meter(Transport& transport, Backend& backend, const MeasureSettings& settings)
      : all_(transport.world()),
        parts_(settings.replica > 1 ? make_strided_transport(transport, settings.replica)
                                    : nullptr),
        transport_(parts_ ? *parts_ : transport),
        backend_(backend),
        settings_(settings) {}

  NetworkModel measure() {
    NetworkModel model;
    model.ranks = all_.size();
    model.ranks_per_host = check_layout();
    model.direct = settings_.direct;
    model.spare_cores = settings_.spare_cores;
    model.memory_bandwidth = memory_bandwidth();
    model.form_replicas(settings_.replica);
    host_ = transport_.rank() / model.ranks_per_host;
    local_rank_ = transport_.rank() % model.ranks_per_host;
    if (model.ranks_per_host > 1) {
      const int neighbour = local_rank_ ^ 1;  // pairs of ranks; an odd last one has none
      const int peer =
          neighbour < model.ranks_per_host ? host_ * model.ranks_per_host + neighbour : -1;
      model.inside = slowest_link(measure_link(peer, 0.15));
      model.inside.bandwidth *= model.replica;
    }
    if (model.hosts() > 1) measure_between_hosts(model);
    return model;
  }

 private:
  static constexpr int kConcurrent = 6;  ///< peers, or sums, that fill a host's link together

  /// Returns the number of ranks per host.
  int check_layout() {
    const std::vector<std::string> layouts =
        all_.all_gather(fmt::format("{} {}", all_.local_rank(), all_.local_size()));
    int per_host = 0;
    for (std::size_t r = 0; r < layouts.size(); ++r) {
      int local = 0, size = 0;
      if (std::sscanf(layouts[r].c_str(), "%d %d", &local, &size) != 2)
        fail(ExitCode::kInternal, "planner", "rank {} sent no host layout", r);
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

  /// Bytes a second that a pass over three arrays moves, on all ranks at once; the slowest rank's.
  double memory_bandwidth() {
    const std::int64_t bytes = 32 << 20;
    const WeightedSum sum = sum_of_two(bytes);
    std::vector<double> times;
    all_.barrier();
    for (int i = 0; i < 5; ++i) {
      const double start = settings_.now();
      backend_.weighted_sum(sum);
      backend_.synchronize();
      times.push_back(settings_.now() - start);
    }
    return 3.0 * static_cast<double>(bytes) / max_over_ranks(median(std::move(times)));
  }

  void measure_between_hosts(NetworkModel& model) {
    const double held = -max_over_ranks(-tcp_bytes_under_way());
    if (held > 0.0) model.window = std::min(held, kPairWindow);
    const auto rounds = host_pairings(model.hosts());
    const double budget =
        std::max(0.05, settings_.seconds * 0.4 / static_cast<double>(rounds.size()));
    std::vector<double> bandwidth(static_cast<std::size_t>(model.hosts()), 0.0);
    double& own_bandwidth = bandwidth[static_cast<std::size_t>(host_)];
    std::vector<double> latencies, duplex_factors;
    double message_cpu = 0.0;
    const double start = settings_.now();
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      // Out of time, and two rounds have given every host a partner
      const double elapsed = max_over_ranks(settings_.now() - start);
      if (round >= 2 && elapsed > settings_.seconds * 0.6) break;
      const int partner = local_rank_ == 0 ? rounds[round][static_cast<std::size_t>(host_)] : -1;
      const int peer = partner < 0 ? -1 : partner * model.ranks_per_host;
      const LinkModel link = measure_link(peer, budget);
      const double duplex_factor = measure_duplex_factor(peer, link, budget);
      if (round == 0) message_cpu = measure_message_cpu(peer, link, settings_.seconds * 0.2);
      if (peer < 0) continue;
      if (duplex_factor > 0.0) duplex_factors.push_back(duplex_factor);
      own_bandwidth = std::max(own_bandwidth, link.bandwidth * model.replica);
      latencies.push_back(link.latency);
    }
    all_.max(bandwidth.data(), bandwidth.size());
    const double latency = max_over_ranks(latencies.empty() ? 0.0 : median(latencies));
    model.between = {latency, median(bandwidth)};
    if (model.hosts() > 2) {
      own_bandwidth =
          std::max(own_bandwidth, measure_concurrent_peers(model, settings_.seconds * 0.2));
      all_.max(bandwidth.data(), bandwidth.size());
    }
    model.sum_bandwidth = measure_concurrent_sums(model, settings_.seconds * 0.2);
    for (double& link : bandwidth) link = std::max(link, model.sum_bandwidth);
    model.between_measured = true;
    const double duplex = duplex_factors.empty() ? 0.0 : median(std::move(duplex_factors));
    model.both_directions = std::max(1.0, max_over_ranks(duplex));
    model.host_bandwidth = bandwidth;
    constexpr double kNegligible = 1e-10;  // seconds of a core per byte
    if (message_cpu > kNegligible) model.spare_cores = false;
    model.message_cpu = message_cpu / model.replica;
  }

  /// Latency and bandwidth of messages to and from one peer in about `budget` seconds; {0, 0} on
  /// ranks without one (peer -1).
  LinkModel measure_link(int peer, double budget) {
    const Tensor small_send = buffer(128), small_receive = buffer(128);
    (void)exchange_seconds(peer, small_send, small_receive, 3);  // sets up the connection
    LinkModel link;
    link.latency = exchange_seconds(peer, small_send, small_receive, 15);
    const double bandwidth = measure_bandwidth(link.latency, budget, 1.0, [&](std::int64_t bytes) {
      return exchange_seconds(peer, buffer(bytes), buffer(bytes), 3);
    });
    if (peer >= 0) link.bandwidth = bandwidth;
    return link;
  }

  /// How many times as long an exchange in both directions takes as one of its directions alone: 1
  /// for a full-duplex link, 2 for a half-duplex one. Timed by the receiver, as a sender is done
  /// once its last bytes are in the socket; 0 on other ranks.
  double measure_duplex_factor(int peer, const LinkModel& link, double budget) {
    // Long enough that handshakes do not matter; the same size on all ranks
    const double bytes = max_over_ranks(
        peer < 0 ? 0.0
                 : std::clamp(link.bandwidth * budget / 8.0, 64.0 * 1024, 16.0 * 1024 * 1024));
    const Tensor send = buffer(static_cast<std::int64_t>(bytes)),
                 receive = buffer(static_cast<std::int64_t>(bytes));
    const double both = exchange_seconds(peer, send, receive, 3);
    const bool receives = peer >= 0 && peer < transport_.rank();
    const double one =
        exchange_seconds(peer, send, receive, 3, receives ? Direction::kReceive : Direction::kSend);
    return receives ? both / std::max(one, 1e-9) : 0.0;
  }

  /// Seconds of a core that one byte between hosts, sent or received, takes from the computation of
  /// the host's ranks: all ranks compute, without and during an exchange of their first ranks.
  double measure_message_cpu(int peer, const LinkModel& link, double budget) {
    const double seconds = std::clamp(budget / 10.0, 0.01, 0.2);
    const Workload workload(*this, seconds);
    const double bytes = max_over_ranks(
        peer < 0 ? 0.0
                 : std::clamp(0.6 * seconds * link.bandwidth, 64.0 * 1024, 64.0 * 1024 * 1024));
    if (bytes < 2 << 20) return 0.0;  // too little for its cost to show above the noise
    const Tensor send = buffer(static_cast<std::int64_t>(bytes)),
                 receive = buffer(static_cast<std::int64_t>(bytes));
    Exchange exchange{.kind = Exchange::Kind::kNeighbours, .weights = {0.5}};
    if (peer >= 0) exchange.send_to = exchange.receive_from = {peer};
    std::vector<double> undisturbed, during_exchange;
    for (int i = 0; i < 5; ++i) {  // alternating, since a machine's speed drifts
      all_.barrier();
      undisturbed.push_back(workload.run());
      all_.barrier();
      const Ticket ticket =
          peer >= 0 ? transport_.start_exchange(exchange, send, {receive}, {-1, 0, i}) : 0;
      during_exchange.push_back(workload.run());
      if (peer >= 0) transport_.wait(ticket);
    }
    double slowdown_and_hosts[2] = {std::max(0.0, median(during_exchange) - median(undisturbed)),
                                    peer >= 0 ? 1.0 : 0.0};
    all_.sum(slowdown_and_hosts, 2);
    const auto [slowdown, hosts] = slowdown_and_hosts;
    return hosts > 0.0 ? slowdown / hosts / (2.0 * bytes) : 0.0;
  }

  /// Bytes a second, in each direction, of this host's link with several peers at once. That can be
  /// more than one connection carries, whose window limits the bytes in flight. 0 on ranks that
  /// are not the first of their host.
  double measure_concurrent_peers(const NetworkModel& model, double budget) {
    std::set<int> peers;
    for (int distance = 1; distance <= kConcurrent / 2; ++distance) {
      for (const int host : {host_ + distance, host_ + model.hosts() - distance})
        peers.insert(host % model.hosts() * model.ranks_per_host);
    }
    peers.erase(transport_.rank());
    if (local_rank_ != 0) peers.clear();
    const auto copies =
        static_cast<double>(std::min(kConcurrent, model.hosts() - 1) * model.replica);
    return measure_bandwidth(model.between.latency, budget, copies, [&](std::int64_t bytes) {
      const std::vector<Tensor> received(peers.size(), buffer(bytes));
      return exchange_seconds({peers.begin(), peers.end()}, buffer(bytes), received, 3);
    });
  }

  /// Bytes a second of a host's link under concurrent sums over all ranks; the slowest host's.
  double measure_concurrent_sums(const NetworkModel& model, double budget) {
    const double on_host = model.ranks_per_host, all = model.ranks;
    // Bytes that a host sends per byte summed, as the planner counts them
    const double sent = kConcurrent * model.replica * on_host * (all - on_host) * 2.0 / all;
    // Longer sums would wait for acknowledgements
    const std::int64_t window = kSumPieces * model.ranks * sum_chunk_bytes(model.ranks);
    const double bandwidth =
        measure_bandwidth(model.between.latency, budget, sent, [&](std::int64_t bytes) {
          std::vector<Tensor> sums;
          const std::int64_t each = std::min(bytes, window);
          for (std::int64_t i = 0; i < kConcurrent * bytes / each; ++i)
            sums.push_back(buffer(each));
          std::vector<double> times;
          for (int repeat = 0; repeat < 3; ++repeat) {
            all_.barrier();
            const double start = settings_.now();
            std::vector<Ticket> tickets;
            for (const Tensor& sum : sums)
              tickets.push_back(
                  transport_.start_sum(sum, sum, {-1, static_cast<int>(tickets.size()), repeat}));
            for (const Ticket ticket : tickets) transport_.wait(ticket);
            times.push_back(settings_.now() - start);
          }
          return typical_time(std::move(times));
        });
    const double slowest = max_over_ranks(bandwidth > 0.0 ? 1.0 / bandwidth : 0.0);
    return slowest > 0.0 ? 1.0 / slowest : 0.0;
  }

  /// Bytes a second of a transfer that takes seconds(bytes) and moves `copies` times `bytes`. The
  /// size grows by factors of 4 until a transfer takes a fifth of the budget and much longer than
  /// the latency. The last two sizes' difference in time counts, so that latencies cancel.
  double measure_bandwidth(double latency, double budget, double copies,
                           const std::function<double(std::int64_t)>& seconds) {
    double last_time = 0.0, last_bytes = 0.0;
    for (std::int64_t bytes = 128 << 10;; bytes *= 4) {
      const double time = seconds(bytes);
      double longest[2] = {time, 12.0 * latency};
      all_.max(longest, 2);
      if (longest[0] > std::max(budget / 5.0, longest[1]) || bytes >= (8 << 20)) {
        const double overhead = std::min(0.7 * time, last_time > 0.0 ? last_time : latency);
        return time > 0.0 ? copies * (static_cast<double>(bytes) - last_bytes) / (time - overhead)
                          : 0.0;
      }
      last_time = time, last_bytes = static_cast<double>(bytes);
    }
  }

  enum class Direction { kBoth, kSend, kReceive };

  /// Seconds of one exchange with `peer` (-1: none, returns 0), out of `count` of them.
  double exchange_seconds(int peer, const Tensor& send, const Tensor& receive, int count,
                          Direction direction = Direction::kBoth) {
    return exchange_seconds(peer < 0 ? std::vector<int>{} : std::vector{peer}, send, {receive},
                            count, direction);
  }
  /// The same with several peers at once; `received` has a tensor for each.
  double exchange_seconds(const std::vector<int>& peers, const Tensor& send,
                          std::vector<Tensor> received, int count,
                          Direction direction = Direction::kBoth) {
    all_.barrier();
    if (peers.empty()) return 0.0;
    Exchange exchange;
    exchange.kind = Exchange::Kind::kNeighbours;
    if (direction != Direction::kReceive) exchange.send_to = peers;
    if (direction != Direction::kSend) {
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
    // Average adjacent exchanges: when one rank started a latency after its peer, it waits in every
    // second exchange only, and the peer twice as long in the others.
    for (std::size_t i = 0; i + 1 < times.size(); ++i) times[i] = (times[i] + times[i + 1]) / 2.0;
    if (times.size() > 1) times.pop_back();
    return typical_time(std::move(times));
  }

  /// Arithmetic on data in the L1 cache for about `seconds`: it uses the processor alone.
  class Workload {
   public:
    Workload(Meter& meter, double seconds)
        : backend_(meter.backend_), settings_(meter.settings_), sum_(meter.sum_of_two(8192)) {
      sum_.in[1] = sum_.in[0];
      double took = 0.0;
      while (took < seconds / 8.0) {
        passes_ *= 2;
        took = run();
      }
      passes_ = static_cast<std::int64_t>(static_cast<double>(passes_) * seconds / took) + 1;
    }
    /// Returns the seconds that it took.
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

  Tensor buffer(std::int64_t bytes) {
    Tensor tensor(backend_, Shape{std::max<std::int64_t>(bytes / 4, 32)}, DType::kFloat32);
    backend_.fill(tensor, 1.0);
    return tensor;
  }
  /// out = (a + b) / 2, of arrays of `bytes` bytes.
  WeightedSum sum_of_two(std::int64_t bytes) {
    return {.in = {buffer(bytes), buffer(bytes)},
            .weight = {0.5, 0.5},
            .terms = 2,
            .out = buffer(bytes)};
  }

  double max_over_ranks(double value) {
    all_.max(&value, 1);
    return value;
  }
  /// The worst latency and bandwidth of all ranks' links; ranks without a peer do not count.
  LinkModel slowest_link(const LinkModel& own) {
    double values[2] = {own.latency, own.bandwidth > 1.0 ? 1.0 / own.bandwidth : 0.0};
    all_.max(values, 2);
    return {values[0], values[1] > 0.0 ? 1.0 / values[1] : 1e12};
  }

  World& all_;
  std::unique_ptr<Transport> parts_;
  Transport& transport_;  ///< whose ranks are replicas, where there are any
  Backend& backend_;
  MeasureSettings settings_;
  int host_ = 0, local_rank_ = 0;
};

}  // namespace

NetworkModel measure_network(Transport& transport, Backend& backend,
                             const MeasureSettings& settings) {
  return Meter(transport, backend, settings).measure();
}

}  // namespace starling
