#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "comm/capture.h"
#include "comm/exchange_plan.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/operations/codecs.h"
#include "core/registry.h"
#include "core/trace.h"
#include "topology/topology.h"

namespace starling {

/// The mix that an update applies: c = self_weight·x + Σ_k weights[k]·received[k]. With `sum` it is
/// weights[0] times the sum of `received` in order, and `encoded` describes them if they are
/// encoded messages.
struct Mix {
  double self_weight = 1.0;
  std::vector<Tensor> received;
  std::vector<double> weights;
  bool sum = false;
  EncodedTerms encoded = {};

  /// From now on x + share · (c - x); not of encoded messages.
  void take_part(double share) {
    self_weight = 1.0 - share * (1.0 - self_weight);
    for (double& weight : weights) weight *= share;
  }
};

/// Times and traces waits for other ranks. On a device only the update stream waits, so that the
/// rest of the backward pass can run.
class ExchangeWait {
 public:
  explicit ExchangeWait(Backend& backend) : backend_(backend) {}
  template <class Wait>
  void operator()(const char* verb, int bucket, const Wait& wait) {
    const TraceSpan span(verb, "bucket " + std::to_string(bucket), TraceLane::kExchange);
    const StreamScope scope(backend_, StreamKind::kUpdate);
    const auto begin = std::chrono::steady_clock::now();
    wait();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  /// Seconds waited since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }

 private:
  Backend& backend_;
  double seconds_ = 0.0;
};

/// What is mixed, and when. All referenced objects outlive the mixer.
struct MixSite {
  std::vector<Bucket>& buckets;
  const Topology* topology = nullptr;  ///< null: nothing is mixed
  bool overlap = true;                 ///< false: wait for every exchange right after starting it
  /// Start a round at the beginning of the next step instead of after each bucket's update, so that
  /// a captured graph contains whole exchanges.
  bool start_at_begin = false;
  /// Send messages even where parameters could be read in shared memory: for rounds that end in the
  /// step in which they start, and for tensors that are not the model's parameters.
  bool messages = false;
};

/// Exchanges the parameters of buckets with the neighbours. In step t, for each bucket and in the
/// same order on all ranks:
///     const Mix& mix = receive(bucket, t, t - 1);   waits for round t - 1, and until no rank reads
///                                                   the memory that the update will write
///     … update the parameters …
///     publish(bucket, t, t);                        releases what was read, and starts round t
/// So a round can overlap with a whole forward and backward pass. In round -1 nothing is mixed.
/// This class fixes the order of operations; subclasses in comm/mixers implement them.
class Mixer {
 public:
  /// How the ranks of a group exchange.
  enum class Groups : std::uint8_t {
    kSummed,         ///< sums of parameters, for which a transport may need communicators
    kSummedEncoded,  ///< sums of encoded parameters
    kMessages,       ///< messages between each pair, also in a round over nodes
  };
  Mixer(Backend& backend, Transport& transport, Groups groups = Groups::kSummed);
  virtual ~Mixer() = default;
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  /// Collective. Called before all others, and again to start over.
  void open(const MixSite& site);
  /// Begins a step, which will receive `round`.
  void begin(std::int64_t step, std::int64_t round);
  /// Valid until publish().
  const Mix& receive(int bucket, std::int64_t step, std::int64_t round);
  void publish(int bucket, std::int64_t step, std::int64_t round);
  /// Waits for all exchanges; their results are kept for receive().
  void settle();
  /// After settle(): the result of a bucket's exchange that receive() has not taken yet, as the
  /// transport delivered it. Null members without an exchange, and for encoding mixers.
  struct Arrived {
    const Exchange* exchange = nullptr;
    const std::vector<Tensor>* received = nullptr;
  };
  Arrived arrived(int bucket);
  /// After a resume at step t: restarts each bucket's round that was in flight; -1: none was.
  void resume(std::int64_t step, const std::function<std::int64_t(int bucket)>& round);
  void resume(std::int64_t step, std::int64_t round) {
    resume(step, [round](int) { return round; });
  }
  /// Seconds that this rank waited for exchanges since the last call.
  double take_wait_seconds() { return wait_.take_seconds(); }

  // Implemented by subclasses.

  virtual std::string name() const = 0;
  /// A mixer for other tensors in the same number format, by messages, without error feedback.
  virtual std::unique_ptr<Mixer> another() const;
  /// Collective. May move the buckets' parameters to memory that other ranks can read, with a
  /// second buffer each (Bucket::spare). Returns whether all ranks can read each other's: then
  /// rounds over nodes are best planned from their flat matrix.
  virtual bool share(std::vector<Bucket>& buckets) = 0;
  /// The number of receive buffers, of the parameters' size and type, that start() needs.
  virtual std::size_t buffers_for(const Exchange& exchange) const = 0;
  /// Starts the exchange of a bucket's updated parameters. Sets `received` to the tensors that have
  /// the result between wait() and release(): some of `buffers`, or other ranks' parameters. Called
  /// for exchanges of kind kNone, too; ticket 0 needs no wait.
  virtual Ticket start(const Exchange& exchange, const Bucket& bucket,
                       const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                       const ExchangeLabel& label) = 0;
  virtual void wait(Ticket ticket) = 0;
  /// After the wait: sets `mix`. May move from `received`.
  virtual void terms(const Exchange& exchange, std::vector<Tensor>& received,
                     const ExchangeLabel& label, Mix& mix) = 0;
  /// The result of the last exchange of this bucket will not be read any more. Called on the update
  /// stream.
  virtual void release(const ExchangeLabel& label) = 0;
  /// Waits until no rank reads the bucket's Bucket::spare.
  virtual void wait_until_writable(const Bucket& bucket, const ExchangeLabel& label) = 0;
  // Capturing in graphs, as for a transport.
  virtual std::string why_not_captured() const = 0;
  virtual std::unique_ptr<CapturePart> join_capture(std::int64_t step) = 0;

 protected:
  Backend& backend_;
  Transport& transport_;
  bool sums_ = false;  ///< the topology has rounds with group sums

 private:
  /// The current exchange of a bucket.
  struct Incoming {
    std::int64_t round = -1;  ///< -1: none yet
    bool in_flight = false;
    Ticket ticket = 0;
    std::vector<Tensor> buffers;   ///< receive buffers, allocated once
    std::vector<Tensor> received;  ///< see start()
  };
  void grow(std::size_t bucket, std::size_t count);
  void start_round(int bucket, std::int64_t step, std::int64_t round);
  void settle(int bucket);

  Groups groups_;
  std::vector<Bucket>* buckets_ = nullptr;
  bool overlap_ = true, start_at_begin_ = false;
  ExchangeSchedule schedule_{nullptr, 0, false};
  std::vector<Incoming> incoming_;  ///< by bucket
  /// Of the bucket being mixed. A member so that its vectors are reused
  Mix mix_;
  ExchangeWait wait_;
};

/// Settings of encoded exchanges, set by keys of the algorithms that support them.
struct Encoding {
  std::int64_t block = 256;  ///< elements that share a scale; 0: all of a message
  double step = 1.0;         ///< γ: factor on the decoded differences that a rank applies
  /// With error feedback: index in Bucket::sync of the residual
  int residual = -1;
  /// Of a mean over all ranks, which the algorithm computes itself (AlgorithmPlan::by_exchange)
  bool of_means = false;
  DType dtype = DType::kFloat32;
  /// The key that was set and only applies to codes; empty: none.
  const char* key_of_codes() const {
    return residual >= 0               ? "error_feedback"
           : step != 1.0               ? "consensus_step"
           : block != Encoding().block ? "block"
                                       : "";
  }
  /// Whether all settings have their defaults, apart from `block`.
  bool plain() const { return step == 1.0 && residual < 0 && dtype == DType::kFloat32; }
};

/// A value of `sync.exchange`: the number format of exchanges, and its properties.
struct MixerKind {
  std::function<std::unique_ptr<Mixer>(Backend&, Transport&, const Encoding&)> make;
  double wire = 1.0;     ///< bytes on the wire per byte of parameters
  bool encodes = false;  ///< parameters are encoded, not read in shared memory
  Code code = Code::kNone;
  /// Whole messages go to every neighbour: there are no sums in groups or nodes
  bool whole = false;
  /// The largest numbers alone, gathered by algorithms that compute such a mean themselves
  bool sparse = false;
  bool unequal_data = false;  ///< ranks train on data of different kinds: data.partition dirichlet
};
using MixerKinds = Registry<MixerKind>;
MixerKinds& mixers();

}  // namespace starling
