#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/bucket.h"
#include "comm/capture.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_wait.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/operations/codecs.h"
#include "core/registry.h"
#include "topology/topology.h"

namespace starling {

/// c = self_weight·x + Σ weights·received; with `sum`, weights has one entry, for the sum of what
/// was received in its order. Where that sum is of messages, `encoded` says of what kind.
struct Mix {
  double self_weight = 1.0;
  std::vector<Tensor> received;
  std::vector<double> weights;
  bool sum = false;
  EncodedTerms encoded = {};
};

/// What is mixed, and when; all of it outlives the mixer.
struct MixSite {
  std::vector<Bucket>& buckets;
  const Topology* topology = nullptr;  ///< null: nothing is mixed
  bool overlap = true;                 ///< false: wait for every exchange right after its start
  /// A round starts when the next step begins, not as buckets are updated, so that a graph holds
  /// whole exchanges.
  bool start_at_begin = false;
  /// Parameters travel as messages, whatever could be read where it lies: for rounds that end in
  /// the step in which they began, and for tensors that are not the model's.
  bool messages = false;
};

/// How a bucket's parameters reach the neighbours, and theirs reach the update. Step t of a bucket
/// is
///     const Mix& mix = receive(bucket, t, t - 1);   round t - 1 has come, and what the
///                                                  update writes is read by nobody any more
///     … the update …
///     publish(bucket, t, t);                        what was read is let go, and round t starts
/// in the same order on all ranks. A round has a whole forward and backward pass to arrive. Round
/// -1 is none: nothing is mixed or started. The order of the five things that this takes (wait,
/// wait until writable, update, release, start) is here alone; how each is done is the kind of
/// mixer's, in comm/mixers.
class Mixer {
 public:
  /// What travels to a group of several ranks.
  enum class Groups : std::uint8_t {
    kSummed,         ///< sums of the parameters, for which a transport may want communicators
    kSummedEncoded,  ///< sums of what they are encoded to
    kMessages,       ///< messages between any two, also in a round over nodes
  };
  Mixer(Backend& backend, Transport& transport, Groups groups = Groups::kSummed);
  virtual ~Mixer() = default;
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  /// Collective, before anything else; again for a new start.
  void open(const MixSite& site);
  /// `round`: what step `step` will receive.
  void begin(std::int64_t step, std::int64_t round);
  /// Valid until publish().
  const Mix& receive(int bucket, std::int64_t step, std::int64_t round);
  void publish(int bucket, std::int64_t step, std::int64_t round);
  /// Waits for all that is under way; what it brought stays until it is received.
  void settle();
  /// What came for a bucket and is still to be mixed, after settle(), as the transport brought it;
  /// nothing without an exchange. Mixers that encode what travels have none.
  struct Arrived {
    const Exchange* exchange = nullptr;
    const std::vector<Tensor>* received = nullptr;
  };
  Arrived arrived(int bucket);
  /// Starts again the round that was under way, after a resume at step t, which receives it.
  void resume(std::int64_t step, std::int64_t round);
  /// Seconds that this rank waited for exchanges since the last call.
  double take_wait_seconds() { return wait_.take_seconds(); }

  // What a kind of mixer is made of.

  virtual std::string name() const = 0;
  /// Collective. May move the buckets' parameters to where other ranks read them, with a second
  /// buffer each (Bucket::spare); their numbers stay. Whether every rank reads every other one's
  /// from now on: then a round over nodes is best made of its flat matrix.
  virtual bool share(std::vector<Bucket>& buckets) = 0;
  /// How many buffers of the parameters' kind start() needs for what the exchange brings.
  virtual std::size_t buffers_for(const Exchange& exchange) const = 0;
  /// Starts a bucket's exchange: its parameters are final. `received` becomes the tensors that hold
  /// what came, from wait() until release(): some of `buffers`, or other ranks' own parameters.
  /// Called for rounds of kind kNone too (ticket 0: nothing to wait for).
  virtual Ticket start(const Exchange& exchange, const Bucket& bucket,
                       const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                       const ExchangeLabel& label) = 0;
  virtual void wait(Ticket ticket) = 0;
  /// Fills in what the update mixes, after the wait. It may take `received` for its own.
  virtual void terms(const Exchange& exchange, std::vector<Tensor>& received,
                     const ExchangeLabel& label, Mix& mix) = 0;
  /// Lets go of what the last exchange of the label's bucket brought: it is mixed or dropped, and
  /// not read any more. On the update stream.
  virtual void release(const ExchangeLabel& label) = 0;
  /// Waits until no rank reads what the bucket, the label's, holds in Bucket::spare.
  virtual void wait_until_writable(const Bucket& bucket, const ExchangeLabel& label) = 0;
  /// Why what a mixer exchanges cannot be captured, as of a transport.
  virtual std::string why_not_captured() const = 0;
  virtual std::unique_ptr<CapturePart> join_capture(std::int64_t step) = 0;

 protected:
  Backend& backend_;
  Transport& transport_;
  bool sums_ = false;  ///< rounds with sums of groups are to come

 private:
  /// What has come, or is to come, for a bucket.
  struct Incoming {
    std::int64_t round = -1;  ///< -1: none yet
    bool in_flight = false;
    Ticket ticket = 0;
    std::vector<Tensor> buffers;   ///< allocated once, for what cannot be read where it lies
    std::vector<Tensor> received;  ///< what this round brings
  };
  void grow(std::size_t bucket, std::size_t count);
  void start_round(int bucket, std::int64_t step, std::int64_t round);
  void settle(int bucket);

  Groups groups_;
  std::vector<Bucket>* buckets_ = nullptr;
  bool overlap_ = true, start_at_begin_ = false;
  ExchangeSchedule schedule_{nullptr, 0, false};
  std::vector<Incoming> incoming_;  ///< by bucket
  /// Of the bucket being mixed, empty between steps; kept for its vectors' memory
  Mix mix_;
  ExchangeWait wait_;
};

/// How numbers travel that are encoded: keys of the algorithms that have such exchanges.
struct Encoding {
  std::int64_t block = 256;  ///< numbers that share a range; 0: a whole message
  double step = 1.0;         ///< γ: the part of the decoded differences that a rank goes
  /// With error feedback: which of Bucket::sync keeps what encoding left out
  int residual = -1;
  DType dtype = DType::kFloat32;
  /// The key that asks for something of codes alone; empty: none does.
  const char* key_of_codes() const {
    return residual >= 0               ? "error_feedback"
           : step != 1.0               ? "consensus_step"
           : block != Encoding().block ? "block"
                                       : "";
  }
  /// Nothing but the format itself.
  bool plain() const { return step == 1.0 && residual < 0 && dtype == DType::kFloat32; }
};

/// A way to mix, by the number format of what travels (`sync.exchange`), and what that means for a
/// run.
struct MixerKind {
  std::function<std::unique_ptr<Mixer>(Backend&, Transport&, const Encoding&)> make;
  double wire = 1.0;     ///< the part of the parameters' bytes that travels
  bool encodes = false;  ///< what travels is made of the parameters; neighbours' own are not read
  Code code = Code::kNone;
  /// Every neighbour gets all of it: nothing is summed on the way, in groups or on nodes
  bool whole = false;
};
using MixerKinds = Registry<MixerKind>;
MixerKinds& mixers();

}  // namespace starling
