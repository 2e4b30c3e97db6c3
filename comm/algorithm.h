#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/bucket.h"
#include "comm/mixer.h"
#include "comm/transport.h"
#include "core/backend.h"
#include "core/config.h"
#include "core/device_trace.h"
#include "core/operations/codecs.h"
#include "core/registry.h"
#include "kernels/optimizer.h"
#include "topology/check.h"
#include "topology/topology.h"

// comm decides who sends what to whom, and when.
// - bucket: parameters as flat buffers, in the order of the backward pass
// - algorithm and scheduler: what happens to a bucket once its gradients are complete; algorithms/
//   has the implementations
// - mixer: how parameters reach the neighbours (mixers/, shared/)
// - transport: how buffers travel (mpi/, nccl/, transports/); world: the control plane
// - exchange_plan: a topology's round as sends, receives and sums
// - capture: what a captured graph of a step contains
// - agreement: how ranks fail together
// - planner/: predictions. It uses all of the above, and none of them uses it.
// comm uses core, kernels and topology, never layers: the trainer connects the two.

namespace starling {

class Replica;

/// Clipping of gradients by their norm; norm = 0 disables it.
struct ClipSettings {
  double norm = 0.0;
  bool per_bucket = false;
};

/// A group of parameters with its own optimizer rule and learning rate.
struct RuleGroup {
  const OptimizerRule* rule = nullptr;
  double lr_scale = 1.0;  ///< factor on the learning rate
  /// From this step on the learning rate is 0
  std::int64_t until_step = std::numeric_limits<std::int64_t>::max();
};

/// The gradient norm of a step, before clipping: of the mean over ranks with all-reduce, else of
/// this rank's gradients. Recorded where updates compute a norm anyway; on CPUs whenever wanted.
struct GradientRecord {
  bool wanted = false;         ///< by the step that is about to begin
  std::int64_t step = -1;      ///< StepInfo::step that the members below belong to
  Tensor squares;              ///< fp64, on the device: partial sums of squares
  double scale = 1.0;          ///< factor from the square root of their sum to the norm
  Replica* replica = nullptr;  ///< whose other ranks have the squares of other parts; null: none
  /// The norm of this step, if it was recorded. Waits for the device.
  std::optional<double> norm(std::int64_t of_step) const;
};

/// What an algorithm operates on. All referenced objects outlive it.
struct AlgorithmSite {
  Backend& backend;
  Transport& transport;
  Mixer& mixer;  ///< for algorithms that mix parameters
  const OptimizerRule& rule;
  std::vector<Bucket>& buckets;
  const Topology* topology = nullptr;  ///< null for algorithms without one
  std::int64_t ranks_per_node = 0;     ///< AlgorithmNeeds::ranks_per_node, set by make_algorithm()
  std::int64_t period = 0;             ///< AlgorithmSteps::period, set by make_algorithm()
  ClipSettings clip = {};
  bool in_backward = true;  ///< false: update all buckets after the backward pass
  bool overlap = true;      ///< false: wait for every exchange right after starting it
  /// fp16: a step with non-finite gradients mixes but does not update. Requires in_backward = false
  bool check_overflow = false;
  /// Gossip: start a step's exchanges at the beginning of the next step instead of after each
  /// bucket's update, so that a captured graph contains whole exchanges
  bool start_at_begin = false;
  /// Indexed by Bucket::runs; the first has `rule`. Empty: all parameters use `rule`
  std::vector<RuleGroup> groups = {};
  /// Called on the update stream after each update of a bucket, before its parameters are sent. May
  /// change them.
  std::function<void(int bucket)> after_update = {};
  GradientRecord* gradients = nullptr;  ///< null: norms are not recorded
  double timeout_seconds = 300.0;       ///< of an algorithm's own waits for other ranks
  /// Ranks that share the model; null: each has its own. `buckets` are whole and `transport` is
  /// Replica::between(). An algorithm gets its rank's parts of the buckets.
  Replica* replica = nullptr;
  bool passes_exchange = false;  ///< forward and backward pass use the transport too
  FindNumbers find = {};         ///< memory of states, "sync.STATE"
};

/// One step's numbers, the same on all ranks.
struct StepInfo {
  std::int64_t step = 0;            ///< t = 0, 1, …: updates before this one
  std::int64_t optimizer_step = 1;  ///< s = 1, 2, …: updates including this, without skipped ones
  double loss_scale = 1.0;          ///< factor that the gradients contain
  double lr = 0.0;
  double largest_lr = 0.0;  ///< over all steps up to this one; below lr: unknown
};

/// A training algorithm: when ranks communicate, and what they do with the result. The scheduler
/// calls begin(), bucket_ready() for each bucket in order, then backward_done(). finish() is called
/// before parameters are read, for a checkpoint or at the end of training.
class Algorithm {
 public:
  virtual ~Algorithm() = default;
  explicit Algorithm(const AlgorithmSite& site) : site_(site), wait_(site.backend) {}
  /// May be called again for the same step, when capturing it in a graph failed half-way.
  virtual void begin(const StepInfo& info) = 0;
  virtual void bucket_ready(int bucket) = 0;
  virtual void backward_done() = 0;
  /// Whether a bucket's gradients of this step will not be read again, so that their memory can be
  /// reused for the next bucket. Asked after each bucket_ready().
  virtual bool gradients_consumed(int bucket) const { return is_through_with(bucket); }
  /// The former name of gradients_consumed(), which algorithms outside may override.
  virtual bool is_through_with(int /*bucket*/) const { return false; }
  /// Whether the bucket already holds x(t+1), so that it may be gathered within the replica. Asked
  /// after each bucket_ready(), with the same answer on all ranks. If false, it does after
  /// backward_done().
  virtual bool parameters_final(int /*bucket*/) const { return false; }
  /// The compute stream is about to read the bucket's parameters.
  virtual void before_read(int /*bucket*/) {}
  /// Whether bucket_ready() returns with the bucket updated.
  virtual bool updates_at_once() const { return false; }
  /// Completes or discards what is in flight: afterwards the parameters are x(t+1). Does not affect
  /// the following steps (gossip keeps what it received), so that evaluation and checkpoints change
  /// no bit.
  virtual void finish() = 0;
  /// finish() before another algorithm continues the run: also applies what would be used later.
  virtual void conclude() { finish(); }
  /// After a resume at step t: restarts the exchange that was in flight.
  virtual void resume(std::int64_t step) = 0;
  /// The same where the loss of a rank interrupted the step before: nothing in flight was waited
  /// for or saved (finish()), and it is unknown who has received what of it.
  virtual void resume_after_loss(std::int64_t step) { resume(step); }
  /// The number of steps done when that which is equal on all ranks (AlgorithmEquality) last
  /// changed; 0: never. Valid even if an exchange failed in the middle of a step.
  virtual std::int64_t met() const { return 0; }
  /// With check_overflow, after backward_done(): fp64 [2] on the device. The second element is 1 if
  /// this step's update was skipped.
  virtual Tensor control() const { return {}; }
  /// Weight of this rank's parameters in the mean model, Σ weight_i · x_i / n. Weights sum to n.
  virtual double mean_weight() const { return 1.0; }
  /// The number of steps after which the device's work repeats, so that graphs of this many steps
  /// can be replayed: the common period of algorithm, topology, rule and buffers. 0 if it never
  /// repeats or involves the host, with the reason in `why`.
  std::int64_t graph_period(std::string& why) const;
  /// Seconds this rank has waited for exchanges since the last call.
  virtual double take_wait_seconds();

  /// With AlgorithmSteps::leaves_out, after backward_done(): how many of the following steps this
  /// rank must skip, because the others have already done them.
  virtual std::int64_t take_left_out() { return 0; }
  /// A step after which ranks of an asynchronous algorithm met, and what they agreed on.
  struct Meeting {
    std::int64_t step = 0;
    std::vector<int> participants;  ///< ranks, ascending
    bool stop = false;              ///< all ranks stop after this step
    bool join = false;              ///< or a rank joins them
  };
  /// Meetings since the last call, the same on all ranks.
  virtual std::vector<Meeting> take_meetings() { return {}; }
  /// With AlgorithmSteps::leaves_out: this rank was told to stop; the next meeting tells the
  /// others.
  virtual void ask_to_stop() {}
  /// The same for a rank that waits to join.
  virtual void ask_to_join() {}

 protected:
  int ranks() const { return site_.transport.size(); }
  int buckets() const { return static_cast<int>(site_.buckets.size()); }
  Bucket& bucket(int b) const { return site_.buckets[static_cast<std::size_t>(b)]; }
  /// State k of the plan (AlgorithmPlan::states) for bucket b.
  Tensor& state(int b, std::size_t k) const { return bucket(b).sync[k].numbers; }
  /// Initialises state k with the run's first parameters.
  void copy_parameters_to(std::size_t k);
  /// Scratch tensors, one for each bucket, of its parameters' size and type.
  std::vector<Tensor> like_parameters() const;

  /// transport.wait(), timed and traced.
  void wait(Ticket ticket, int bucket) {
    wait_by(bucket, [&] { site_.transport.wait(ticket); });
  }
  /// Another wait for other ranks: that of wait().
  template <class Wait>
  void wait_by(int bucket, const Wait& wait) {
    wait_("exchange", bucket, wait);
  }
  /// wait() unless the ticket is 0; then sets it to 0.
  void settle(Ticket& ticket, int bucket);
  /// Makes a mixer, over the site's topology and by messages, for another tensor of each bucket:
  /// of(bucket). Its waits count as exchanges, too. `mixer`: one of another number format.
  Mixer& make_mixer_for(const std::function<Tensor(const Bucket&)>& of, bool overlap,
                        std::unique_ptr<Mixer> mixer = nullptr);
  /// Opens the site's mixer, or another, for such tensors. The mixed tensors use the bucket's sync
  /// states (for Encoding::residual).
  Mixer& mix_tensors(const std::function<Tensor(const Bucket&)>& of, bool overlap, Mixer& mixer);
  /// The former name of make_mixer_for().
  Mixer& mix_beside(const std::function<Tensor(const Bucket&)>& of, bool overlap) {
    return make_mixer_for(of, overlap);
  }
  AlgorithmSite site_;

 private:
  ExchangeWait wait_;
  std::deque<std::vector<Bucket>> mixed_;  ///< of mix_tensors()
  std::vector<std::unique_ptr<Mixer>> own_mixers_;
};

/// The number of steps after which updates with this rule, mixed by this topology (null: not
/// mixed), repeat the same work. 0 if they never do, with the reason in `why`.
std::int64_t repeat_period(const Topology* topology, const OptimizerRule& rule, std::string& why);

/// A linear model of an algorithm's step, used to compute how the disagreement between ranks grows:
/// with zero gradients and a learning rate of 1. z[0][i] is rank i's parameter, z[1], … its states
/// (such as momentum). mix(v) replaces v by Σ_j W_ij v_j of the next round.
struct DisagreementModel {
  using Numbers = std::vector<std::vector<double>>;
  using MixOne = std::function<void(std::vector<double>&)>;
  int states = 0;
  std::function<void(Numbers& z, const MixOne& mix)> step;
  std::int64_t steps = 1;       ///< that `step` computes: those from one exchange to the next
  std::int64_t mean_every = 0;  ///< exchanges between means over all ranks; 0: there are none
};

/// The same for an algorithm that encodes its messages itself. Each vector has several numbers of
/// every rank. code(v) replaces each rank's v by what its neighbours decode.
struct EncodedModel {
  int states = 0;
  bool states_begin_at_x = false;  ///< states start as the initial parameters, not as zeros
  Code code = Code::kNone;
  std::int64_t block = 0;
  std::function<void(DisagreementModel::Numbers& z, const DisagreementModel::MixOne& mix,
                     const DisagreementModel::MixOne& code)>
      step = {};
};

/// Tensors that an algorithm keeps for every bucket: initially zero, saved in checkpoints, counted
/// by --dry-run.
struct KeptState {
  std::string name;
  int copies = 1;                             ///< more than one are saved as name.0, name.1, …
  std::optional<DType> dtype = std::nullopt;  ///< empty: that of the parameters
  /// Elements, once for the whole run (in the first bucket); 0: as many as each bucket has
  std::int64_t numbers = 0;
  /// One copy for the rank and one for each neighbour of round 0; none if there is a single rank
  bool per_neighbour = false;
  int copies_on(const Topology* topology, int rank) const;
};

/// A config key that is a number of steps. A value beyond the run's length is an error; a period
/// that does not divide the run's length is reported.
struct StepKey {
  std::string key;
  std::int64_t steps = 0;
  bool period = true;      ///< an interval; false: a step at which something begins
  std::int64_t after = 0;  ///< the step at which the first period begins
  std::int64_t unit = 1;   ///< if the key counts exchanges: steps between two of them
  /// The result of a period is used in the step after it, so that step must exist
  bool used_next = false;
};

/// Requirements of an algorithm.
struct AlgorithmNeeds {
  /// `sync.topology.type` if the config has none; empty: base-2
  std::string default_topology = {};
  std::vector<std::string> optimizers = {};  ///< allowed ones; empty: any
  /// Returns why an allowed optimizer's settings do not work with it; empty if they do.
  std::function<std::string(const OptimizerRule&)> rule_fault = {};
  /// Why it does not support fp16 and what to use instead. (Under fp16 each rank counts its
  /// optimizer's steps itself.) Empty: it does
  std::string fp16_fault = {};
  /// The minimal number of the model's buckets, and the config key that requires it; 0: any number
  struct LeastBuckets {
    std::string key;
    std::int64_t count = 0;
  } least_buckets = {};
  /// The same for the number of ranks
  struct LeastRanks {
    std::string key;
    std::int64_t count = 0;
  } least_ranks = {};
  /// It polls host memory for arrivals, so it does not run over transports between GPUs
  bool host_messages = false;
  bool by_nodes = false;  ///< it distinguishes ranks within a node from others
  /// Set by the config, must divide the number of ranks; 0: by the topology or the hosts
  std::int64_t ranks_per_node = 0;
};

/// How an algorithm's steps follow each other.
struct AlgorithmSteps {
  std::vector<StepKey> keys = {};
  /// The algorithm's own work repeats after this many steps, with nothing in flight between steps;
  /// 0: unknown, so steps are not captured in graphs
  std::int64_t period = 0;
  /// Results depend on timing (requires `"deterministic": false`), and ranks' step counts may
  /// differ
  bool asynchronous = false;
  /// Why, for errors: "… adds a mean when it arrives"; `undo`: settings without that dependence
  std::string timing = "adds a mean when it arrives", undo = "another algorithm";
  /// Asynchronous, and a rank that is behind skips steps (Algorithm::take_left_out())
  bool leaves_out = false;
  /// It resets the optimizer's step count now and then, so no other algorithm can continue the run
  bool restarts_updates = false;
  /// Ranks may join after steps divisible by this, with a neighbour's parameters and states; 0:
  /// never
  std::int64_t joins_every = 0;
  /// A joiner that has fetched the state of such a step may join up to this many steps later, too;
  /// nothing that is equal on all ranks may change in these
  std::int64_t joins_within = 0;
};

/// How an algorithm's exchanges travel.
struct AlgorithmMessages {
  /// The encoding of `sync.exchange` that it supports, if any
  std::optional<Encoding> encoding = std::nullopt;
  /// Bytes on the wire per byte exchanged; below 1 if it encodes messages itself
  double wire = 1.0;
  /// Always send messages, even if neighbours could read the parameters in shared memory (MixSite)
  bool always = false;
  /// Tensors of the parameters' size that an exchange receives from each neighbour
  int mixed = 1;
  bool gathers = false;       ///< one such tensor of every other rank, instead
  bool mixes_states = false;  ///< the optimizer's states are exchanged, too
  /// Elements that share a code's scale (key `block`): the parts of a bucket begin at multiples of
  /// it, and of 32. Set by read_algorithm(); 0: none
  std::int64_t block = 0;
};

/// What is bitwise equal on all ranks.
struct AlgorithmEquality {
  static constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();
  /// In steps before this one the optimizer gets gradients averaged over all ranks.
  union {
    std::int64_t mean_gradients_before = 0;
    std::int64_t means_before;  ///< former name
  };
  /// For algorithms that synchronise at intervals: whether a bucket's parameters (bucket of
  /// buckets) are equal after this many of its steps
  std::function<bool(std::int64_t steps, int bucket, int buckets)> after = {};
  bool rule_states = false;  ///< the optimizer's states are equal as well
  /// This many of the plan's first states are equal after every step.
  union {
    int equal_states = 0;
    int kept;  ///< former name
  };
  bool always() const { return mean_gradients_before == kAlways; }
  bool any() const { return always() || after || equal_states > 0; }
};

/// How the disagreement between ranks develops. Needed by algorithms that can amplify it.
struct AlgorithmGrowth {
  std::function<DisagreementModel(const OptimizerRule&)> model = {};  ///< see comm/growth.h
  EncodedModel encoded = {};  ///< of algorithms that encode messages; see comm/consensus.h
};

/// A recurring exchange between ranks, which comm/planner puts on a time line.
struct PlannedExchange {
  enum What : std::uint8_t {
    kRounds,          ///< AlgorithmMessages' tensors with the neighbours of the topology's rounds
    kGradients,       ///< mean over all ranks of a bucket's gradients, started when complete
    kGradientChunks,  ///< the same, by encoded messages (EncodedMean)
    kModels,          ///< mean over all ranks of the parameters
    kGatheredModels,  ///< every rank's parameters to all others
  } what = kRounds;
  std::int64_t every = 1;  ///< steps
  /// Steps during which it may overlap with computation (for gradients: with the rest of the pass);
  /// 0: ranks wait for it
  std::int64_t hidden = 0;
  /// Models: started this many seconds after the last one arrived, not by steps; no step waits
  std::optional<double> pause = std::nullopt;
  /// Gradients: averaged first within nodes of this many ranks; 0: within hosts
  std::int64_t ranks_per_node = 1;
};

/// What a step costs, in time and in learning progress.
struct AlgorithmCost {
  /// Empty: unknown, so nothing is chosen by measurement
  std::vector<PlannedExchange> exchanges = {};
  /// How far apart ranks are when they compute gradients: the squared distance, in units of what
  /// one update adds. `left` is Σ_{k ≥ 0} of the squared fraction of a disagreement that remains
  /// after k rounds (1 without rounds). Returns 0 if ranks apply the mean of equal ranks'
  /// gradients. Without this function the planner does not recommend the algorithm.
  std::function<double(double left)> disagreement = {};
  /// Of outer steps: what was measured of their learning, next to DiLoCo's in fp32 of the same
  /// period (docs/algorithms.md, "Which one")
  struct Learning {
    double loss = 0.0;   ///< the relative difference of the test loss after as many steps
    double steps = 1.0;  ///< how many times as many steps reach the same test loss
  };
  /// Empty: of other algorithms, or not measured
  std::optional<Learning> learning = std::nullopt;
  /// It equals all-reduce except for the disagreement, so `auto` may choose all-reduce instead
  bool near_all_reduce = false;
  /// Keys that the planner tries in addition to the defaults, with each `sync.exchange` that does
  /// not refuse them
  using Keys = std::map<std::string, nlohmann::json>;
  std::vector<Keys> tried = {};
};

/// Describes an algorithm with its settings, before there are buckets and other ranks, and creates
/// it with make(). Members that do not apply keep their defaults.
struct AlgorithmPlan {
  std::string name = {};   ///< in configs; set by read_algorithm()
  std::string title = {};  ///< in reports; empty: the name
  TopologyKind topology = TopologyKind::kNone;
  AlgorithmNeeds needs = {};
  std::vector<KeptState> states = {};
  /// Scratch copies of the parameters, in addition to what neighbours send
  int scratch = 0;
  AlgorithmMessages messages = {};
  AlgorithmSteps steps = {};
  AlgorithmEquality equality = {};
  AlgorithmGrowth growth = {};
  AlgorithmCost cost = {};
  std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> make = {};
  /// Of algorithms that encode what they send themselves: adapts the plan to `sync.exchange`, and
  /// refuses settings that do not go with it. Called once, by exchanged_by().
  std::function<void(AlgorithmPlan&, const MixerKind& exchange)> by_exchange = {};

  /// Whether its exchanges can have this format.
  bool takes(const MixerKind& exchange) const {
    return !exchange.encodes ||
           (messages.encoding && (!exchange.sparse || messages.encoding->of_means));
  }
  const std::string& label() const { return title.empty() ? name : title; }
};

/// AlgorithmPlan::make for a class A whose constructor takes the site and `args`.
template <class A, class... Args>
std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of(Args... args) {
  return [=](const AlgorithmSite& site) { return std::make_unique<A>(site, args...); };
}

/// The registered function reads all of the algorithm's keys but `type`.
using AlgorithmRegistry = Registry<AlgorithmPlan, ConfigSection&>;
AlgorithmRegistry& algorithms();
void register_builtin_algorithms();
/// Reads `type` and the type's keys. A key of another type is an error that names that type.
AlgorithmPlan read_algorithm(ConfigSection& section);
/// Reads a value of `sync.algorithm`: an object, a type, or null for the default. `resolved` is set
/// to the object with every key in today's form.
AlgorithmPlan algorithm_of(const nlohmann::json& value, nlohmann::json* resolved = nullptr,
                           const std::string& source = "saved config");
/// The plan for this `sync.exchange`.
AlgorithmPlan exchanged_by(AlgorithmPlan plan, const MixerKind& exchange);
/// The plans of all registered algorithms with default settings, by name: for the planner, and for
/// suggestions in errors.
std::vector<AlgorithmPlan> known_algorithms();
/// Adds the plan's states to buckets that lack them, and makes the algorithm.
std::unique_ptr<Algorithm> make_algorithm(const AlgorithmPlan& plan, const AlgorithmSite& site);

}  // namespace starling
