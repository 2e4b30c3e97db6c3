#include "comm/planner/predict.h"

#include <algorithm>
#include <cmath>

#include "comm/algorithm.h"
#include "comm/engine/window.h"
#include "comm/mixer.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr double kSlack = 0.5;  ///< fraction of the computation that can overlap with exchanges
/// Steps between exchanges that are simulated individually; further ones are computation only
constexpr std::int64_t kMostInterval = 16;

/// Seconds of the update of so many bytes, with `buffers` additional inputs.
double update_seconds(const StepModel& step, const NetworkModel& network, double bytes,
                      double matrix_flops, double buffers = 0.0) {
  // A replica's rank first adds up all ranks' gradients of its part.
  const double summed = network.replica > 1 ? network.replica + 1.0 : 0.0;
  return bytes * (step.update_traffic + buffers + summed) / network.memory_bandwidth +
         step.matrix_seconds(matrix_flops / network.replica);
}

struct TimeLine {
  const StepModel& step;
  const NetworkModel& network;
  std::vector<PlannedBucket> buckets;
  double now = 0.0, link_free = 0.0, exposed = 0.0;

  /// Seconds of the bucket's update with `buffers` additional inputs.
  double update(const PlannedBucket& bucket, double buffers) const {
    return update_seconds(step, network, bucket.bytes, bucket.matrix_flops, buffers);
  }
  /// Seconds to encode the messages, and to decode them in the update, including the rank's own.
  double recoding(double buffers) const {
    if (step.gossip_wire >= 1.0 || buffers == 0.0) return 0.0;
    return 1.0 + (1.0 + step.gossip_wire) * (2.0 + buffers);
  }
  double transfer(const PlannedBucket& bucket, const RoundCost& cost, double wire) {
    if (cost.per_byte == 0.0 && cost.cpu_per_byte == 0.0 && cost.latency == 0.0) return now;
    const double bytes = bucket.bytes * wire, moving = bytes * cost.per_byte;
    link_free = std::max(link_free, now) + moving;
    const double arrival = std::max(link_free + cost.latency, now + moving + cost.waiting(bytes));
    // The transfer takes time from the computation, unless that is waiting for the transfer anyway.
    if (!network.spare_cores) now += bytes * cost.cpu_per_byte;
    return std::max(arrival, now);
  }
  void wait_until(double time) {
    if (time <= now) return;
    exposed += time - now;
    now = time;
  }
  /// Simulates both passes; calls f(b, the bucket) when bucket b's last gradient is ready.
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

double compute_alone(const StepModel& step, const NetworkModel& network) {
  double bytes = 0.0;
  for (const PlannedTensor& tensor : step.tensors) bytes += tensor.bytes;
  return step.forward + step.backward + update_seconds(step, network, bytes, step.matrix_flops());
}

namespace {

/// Additional seconds of an exchange over a connection that was idle: TCP halves its window for
/// each retransmission timeout without use (RFC 2861), down to ten segments (RFC 5681, 4.1), and
/// needs a round trip for each doubling.
double restart_seconds(const NetworkModel& network, double idle) {
  constexpr double kFirstWindow = 14600.0, kHalvings = 9.0;  // as measured
  const double round_trip = 2.0 * network.between.latency,
               needed = std::min(network.window,
                                 network.between.bandwidth / network.replica * round_trip);
  const double halvings = idle / (0.2 + round_trip);
  return round_trip * std::log2(std::max(1.0, needed / kFirstWindow)) *
         std::min(1.0, halvings / kHalvings);
}

}  // namespace

Prediction predict_gossip(const std::vector<RoundCost>& costs, const NetworkModel& network,
                          const StepModel& step, double bucket_bytes, bool overlap,
                          std::int64_t interval, int tensors) {
  require(!costs.empty(), "planner", "gossip without rounds");
  const double wire = step.gossip_wire * tensors;
  TimeLine line{step, network, planned_buckets(step, bucket_bytes)};
  std::vector<double> arrival(line.buckets.size(), 0.0);
  const auto rounds = static_cast<std::int64_t>(costs.size());
  // One period to reach the steady state, then whole periods that are measured.
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
    // All exchanges start with idle connections. Longer steps leave them idle for longer, so
    // iterate to a fixed point.
    const double base = result.step, slack = result.exposed > 0.0 ? 0.0 : kSlack * alone;
    double late = 0.0;
    for (int i = 0; i < 16; ++i) {
      double more = 0.0;
      for (const RoundCost& cost : costs) {
        const double idle = static_cast<double>((cost.again - 1) * interval) * result.step;
        if (cost.again > 1)
          more += restart_seconds(network, i == 0 ? 1e9 : idle) / static_cast<double>(rounds);
      }
      late = std::max(0.0, more - slack) * pace / static_cast<double>(interval);
      result.step = base + late;
    }
    result.exposed += late;
  }
  result.sent *= part / steps;
  result.between_hosts *= part / steps;
  return result;
}

namespace {

/// An exchange of all buckets at once.
struct WholeExchange {
  /// Seconds; `cpu`: those by which the computation is delayed
  double transfer = 0.0, cpu = 0.0;
  double bytes = 0.0, sent = 0.0, between = 0.0;

  WholeExchange(const RoundCost& cost, const NetworkModel& network, const StepModel& step,
                double bucket_bytes, double wire) {
    double waiting = 0.0;
    for (const PlannedBucket& bucket : planned_buckets(step, bucket_bytes)) {
      bytes += bucket.bytes;
      waiting = std::max(waiting, cost.waiting(bucket.bytes));
    }
    transfer = waiting + bytes * wire * cost.per_byte;
    if (!network.spare_cores) cpu = bytes * wire * cost.cpu_per_byte;
    // Encoding reads the numbers and writes codes, decoding does the reverse.
    if (wire < 1.0) cpu += 2.0 * bytes * (1.0 + wire) / network.memory_bandwidth;
    sent = bytes * wire * cost.sent_per_byte;
    between = bytes * wire * cost.between_per_byte;
  }
};

/// Such exchanges by the rounds in turn, one every `period` steps, which may overlap with `hidden`.
Prediction predict_whole(const std::vector<RoundCost>& rounds, const NetworkModel& network,
                         const StepModel& step, double bucket_bytes, std::int64_t period,
                         std::int64_t hidden, double wire) {
  const double part = 1.0 / static_cast<double>(rounds.size()), apart = static_cast<double>(period),
               alone = compute_alone(step, network);
  Prediction mean;
  for (const RoundCost& round : rounds) {
    const WholeExchange all(round, network, step, bucket_bytes, wire);
    const double exposed =
        std::max(0.0, all.transfer - static_cast<double>(hidden) * alone) / apart;
    mean.step += part * (alone + exposed + all.cpu / apart);
    mean.exposed += part * exposed;
    mean.sent += part * (all.sent / apart);
    mean.between_hosts += part * (all.between / apart);
  }
  return mean;
}

}  // namespace

Prediction predict_averages(const NetworkModel& network, const StepModel& step, double bucket_bytes,
                            std::int64_t period, std::int64_t hidden, double wire, bool gathered) {
  RoundCost cost = cost_of_all_reduce(network);
  for (double* volume :
       {&cost.per_byte, &cost.cpu_per_byte, &cost.sent_per_byte, &cost.between_per_byte}) {
    *volume *= gathered ? network.ranks / 2.0 : 1.0;
  }
  return predict_whole({cost}, network, step, bucket_bytes, period, hidden, wire);
}

Prediction predict_outer_rounds(const std::vector<RoundCost>& rounds, const NetworkModel& network,
                                const StepModel& step, double bucket_bytes, std::int64_t period,
                                std::int64_t hidden) {
  require(!rounds.empty(), "planner", "gossip without rounds");
  return predict_whole(rounds, network, step, bucket_bytes, period, hidden, step.gossip_wire);
}

Prediction predict_asynchronous(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double interval) {
  // Passes over the parameters: a copy (read and write), then the update of the parameters from the
  // mean, the copy and the parameters
  constexpr double kPasses = 6.0;
  const WholeExchange mean(cost_of_all_reduce(network), network, step, bucket_bytes, 1.0);
  const double alone = compute_alone(step, network),
               own = mean.cpu + kPasses * mean.bytes / network.memory_bandwidth;
  // Averages begin and end between steps. The processor time that they take makes steps longer, so
  // that fewer fit in.
  const double steps = std::max(1.0, std::ceil((interval + mean.transfer - own) / alone));
  return {.step = alone + own / steps,
          .sent = mean.sent / steps,
          .between_hosts = mean.between / steps};
}

namespace {

/// A mean of gradients over all ranks: one exchange of a bucket once its last gradient is ready; or
/// with `encoded` two halves, of which the second begins after the pass.
Prediction predict_gradients(const NetworkModel& network, const StepModel& step,
                             double bucket_bytes, const RoundCost& cost, bool overlap, double wire,
                             bool encoded) {
  TimeLine line{step, network, planned_buckets(step, bucket_bytes)};
  std::vector<double> arrival(line.buckets.size(), 0.0);
  Prediction result;
  const auto send = [&](std::size_t b, const PlannedBucket& bucket) {
    arrival[b] = line.transfer(bucket, cost, wire);
    result.sent += bucket.bytes * wire * cost.sent_per_byte;
    result.between_hosts += bucket.bytes * wire * cost.between_per_byte;
  };
  // Encoding reads a byte of parameters and writes its code, decoding does the reverse; what is
  // sent back belongs to all chunks.
  const auto recode = [&](const PlannedBucket& bucket) {
    if (encoded) line.now += bucket.bytes * (1.0 + wire) / network.memory_bandwidth;
  };
  line.passes([&](std::size_t b, const PlannedBucket& bucket) {
    recode(bucket);
    send(b, bucket);
    if (!overlap) line.wait_until(arrival[b]);
  });
  for (std::size_t b = 0; encoded && b < line.buckets.size(); ++b) {
    line.wait_until(arrival[b]);
    recode(line.buckets[b]);
    send(b, line.buckets[b]);
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

}  // namespace

Prediction predict_all_reduce(const NetworkModel& network, const StepModel& step,
                              double bucket_bytes, bool overlap, int ranks_per_node) {
  const bool by_nodes = ranks_per_node > 1 && ranks_per_node < network.ranks;
  const RoundCost cost =
      by_nodes ? cost_of_all_reduce_by_nodes(network, ranks_per_node) : cost_of_all_reduce(network);
  return predict_gradients(network, step, bucket_bytes, cost, overlap, 1.0, false);
}

Prediction predict_encoded_mean(const NetworkModel& network, const StepModel& step,
                                double bucket_bytes, double wire) {
  RoundCost half = cost_of_all_reduce(network);  // the other half has as many bytes
  for (double* cost : {&half.latency, &half.per_byte, &half.cpu_per_byte, &half.sent_per_byte,
                       &half.between_per_byte})
    *cost /= 2.0;
  return predict_gradients(network, step, bucket_bytes, half, true, wire, true);
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
    if (what == PlannedExchange::kRounds && hidden > 1)
      return predict_outer_rounds(rounds, network, step, bucket_bytes, every, hidden);
    if (what == PlannedExchange::kRounds) {
      return predict_gossip(rounds, network, step, bucket_bytes, hidden > 0, every,
                            plan.messages.mixed);
    }
    return pause ? predict_asynchronous(network, step, bucket_bytes, *pause)
                 : predict_averages(network, step, bucket_bytes, every, hidden, plan.messages.wire,
                                    what == PlannedExchange::kGatheredModels);
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
