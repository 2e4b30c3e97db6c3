#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/bucket.h"
#include "comm/exchange_wait.h"
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

// What lives in comm: who sends what to whom, and when. bucket: parameters as flat buffers in
// backward order. algorithm, with scheduler.cpp: what is done with a bucket whose gradients are
// ready (algorithms/). mixer: how parameters reach the neighbours (mixers/, shared/). transport:
// how buffers travel (mpi/, nccl/, transports/); world: the control plane. exchange_plan: a round
// of a topology as sends, receives and sums. capture: what a graph of a step holds. agreement: how
// ranks fail together. planner/: predictions; it stands above all these, and none includes it.
// comm uses core, kernels and topology, and never layers: the trainer brings both together.

namespace starling {

/// Clipping by gradient norm; norm = 0 switches it off.
struct ClipSettings {
  double norm = 0.0;
  bool per_bucket = false;
};

/// How some of the parameters are updated otherwise than the rest.
struct RuleGroup {
  const OptimizerRule* rule = nullptr;
  /// Factor on the learning rate
  double lr_scale = 1.0;
  /// From this step on the rate is 0
  std::int64_t until_step = std::numeric_limits<std::int64_t>::max();
};

/// The norm of a step's gradients as the updates took them: of the mean over ranks under
/// all-reduce, else this rank's; before clipping. Known where a norm is measured anyway, on CPUs in
/// every step that asks.
struct GradientRecord {
  bool wanted = false;     ///< of the step that begins
  std::int64_t step = -1;  ///< StepInfo::step that the rest is of
  Tensor squares;          ///< fp64, on the device: sums of squares, which together are the whole
  double scale = 1.0;      ///< what the norm of those is multiplied by
  /// The step's norm; none where it is not known. Waits for the device.
  std::optional<double> norm(std::int64_t of_step) const;
};

/// What an algorithm works on; all outlive it.
struct AlgorithmSite {
  Backend& backend;
  Transport& transport;
  Mixer& mixer;  ///< for algorithms that mix parameters
  const OptimizerRule& rule;
  std::vector<Bucket>& buckets;
  const Topology* topology = nullptr;  ///< null for algorithms that need none
  std::int64_t ranks_per_node = 0;     ///< the plan's; make_algorithm() fills it in,
  std::int64_t period = 0;             ///< as this one: AlgorithmSteps::period
  ClipSettings clip = {};
  bool in_backward = true;  ///< false: update all buckets after the pass
  bool overlap = true;      ///< false: wait for every exchange right after its start
  /// fp16: a step whose gradients are not all finite mixes, but does not update (needs in_backward
  /// = false)
  bool check_overflow = false;
  /// Gossip: a step's exchanges start when the next step begins, not as its buckets are updated, so
  /// that a graph holds whole exchanges.
  bool start_at_begin = false;
  /// Of Bucket::runs, `rule` being the first; empty: `rule` alone
  std::vector<RuleGroup> groups = {};
  /// Called behind each update of a bucket's parameters by the run's rule, on the update stream:
  /// changes them before anybody is sent them.
  std::function<void(int bucket)> after_update = {};
  GradientRecord* gradients = nullptr;  ///< where the run asks for norms
};

/// One step's numbers, the same on all ranks.
struct StepInfo {
  std::int64_t step = 0;            ///< t = 0, 1, …: updates done before this one
  std::int64_t optimizer_step = 1;  ///< s: updates that were not skipped, and this one
  double loss_scale = 1.0;          ///< the gradients hold this factor
  double lr = 0.0;
  double largest_lr = 0.0;  ///< of this step and those before it; below lr: not said
};

/// When ranks talk and what they do with what they hear. The scheduler calls begin, then
/// bucket_ready for every bucket in bucket order, then backward_done; finish before parameters are
/// read for a checkpoint or at the end of training. Gossip and all-reduce differ only here.
class Algorithm {
 public:
  virtual ~Algorithm() = default;
  explicit Algorithm(const AlgorithmSite& site) : site_(site), wait_(site.backend) {}
  /// The last step may have been given up in its midst, by a capture that failed: then this is the
  /// same step again.
  virtual void begin(const StepInfo& info) = 0;
  virtual void bucket_ready(int bucket) = 0;
  virtual void backward_done() = 0;
  /// Whether nothing reads the gradients of a bucket any more that was ready in this step: asked
  /// after each bucket_ready(), so that their memory may serve the next bucket.
  virtual bool is_through_with(int /*bucket*/) const { return false; }
  /// Whether a bucket is updated when bucket_ready() returns.
  virtual bool updates_at_once() const { return false; }
  /// Completes or drops whatever is in flight; afterwards the parameters are x(t+1), and the next
  /// step behaves as if nothing had happened (gossip keeps what it received, so that evaluation and
  /// checkpoints change no bit).
  virtual void finish() = 0;
  /// At the end of this algorithm's part of a run, where another goes on: as finish(), and what was
  /// still to be used later is used now.
  virtual void conclude() { finish(); }
  /// After a resume at step t: starts again the exchange that was in flight.
  virtual void resume(std::int64_t step) = 0;
  /// With check_overflow, after backward_done: fp64 [2] on the device, whose second element is 1
  /// where this step's update was skipped.
  virtual Tensor control() const { return {}; }
  /// The weight that this rank's parameters have in the mean model, Σ weight_i · x_i / n; they sum
  /// to n.
  virtual double mean_weight() const { return 1.0; }
  /// After how many steps the same device work comes again, so that graphs of that many steps serve
  /// them all: the plan's period with the topology's, the rule's and the buffers'. 0 with a reason
  /// in `why` where it never does, or where the host takes part in it.
  std::int64_t graph_period(std::string& why) const;
  /// Seconds this rank has waited for exchanges since the last call.
  virtual double take_wait_seconds();

 protected:
  int ranks() const { return site_.transport.size(); }
  int buckets() const { return static_cast<int>(site_.buckets.size()); }
  Bucket& bucket(int b) const { return site_.buckets[static_cast<std::size_t>(b)]; }
  /// The plan's k-th state of a bucket.
  Tensor& state(int b, std::size_t k) const { return bucket(b).sync[k].numbers; }
  /// Copies the parameters, which a run starts from, to state k before its first use.
  void copy_parameters_to(std::size_t k);
  /// Tensors to work in, one a bucket, of its parameters' size and type.
  std::vector<Tensor> like_parameters() const;

  /// transport.wait, counted and traced.
  void wait(Ticket ticket, int bucket) {
    wait_("exchange", bucket, [&] { site_.transport.wait(ticket); });
  }
  /// Does the same where the ticket is not 0, and makes it 0.
  void settle(Ticket& ticket, int bucket);
  /// A mixer of tensors beside the parameters, of(bucket) each, by the site's topology, as
  /// messages. Its waits are counted with the others.
  Mixer& mix_beside(const std::function<Tensor(const Bucket&)>& of, bool overlap);
  AlgorithmSite site_;

 private:
  struct Beside {
    std::vector<Bucket> buckets;
    std::unique_ptr<Mixer> mixer;
  };
  ExchangeWait wait_;
  std::deque<Beside> beside_;
};

/// After how many steps updates with this rule, mixed by this topology (null: not mixed) do the
/// same work again; 0 with the reason in `why` where they never do.
std::int64_t repeat_period(const Topology* topology, const OptimizerRule& rule, std::string& why);

/// An algorithm's step on what the ranks disagree in, with gradients zero and a learning rate of 1:
/// z[0][i] is rank i's x, z[1] … its states (the optimizer's momentum among them); mix(v) makes v
/// the round's Σ_j W_ij v_j. All of it is linear. Where ranks exchange now and then, `step` is all
/// steps from one exchange to the next.
struct DisagreementModel {
  using Numbers = std::vector<std::vector<double>>;
  using MixOne = std::function<void(std::vector<double>&)>;
  int states = 0;
  std::function<void(Numbers& z, const MixOne& mix)> step;
  std::int64_t steps = 1;       ///< that `step` is
  std::int64_t mean_every = 0;  ///< every so many exchanges one is the mean over all ranks; 0: none
};

/// The same for an algorithm that encodes by itself what it sends: its step on all ranks' numbers,
/// so many of each one after another. code(v) makes of each rank's v what its neighbours decode.
struct EncodedModel {
  int states = 0;
  /// As the parameters that all ranks begin with; otherwise at zero
  bool states_begin_at_x = false;
  Code code = Code::kNone;
  std::int64_t block = 0;
  std::function<void(DisagreementModel::Numbers& z, const DisagreementModel::MixOne& mix,
                     const DisagreementModel::MixOne& code)>
      step = {};
};

/// Tensors kept beside every bucket from step to step: zero at first, saved in checkpoints, counted
/// by --dry-run.
struct KeptState {
  std::string name;
  int copies = 1;                             ///< several are saved as name.0, name.1, …
  std::optional<DType> dtype = std::nullopt;  ///< empty: the parameters'
  /// So many for the whole run, kept with the first bucket; 0: as many as each bucket's elements
  std::int64_t numbers = 0;
  /// A copy for the rank itself and one for each that it hears from in round 0; none of a single
  /// rank
  bool per_neighbour = false;
  int copies_on(const Topology* topology, int rank) const;
};

/// A key that gives a number of steps: more than the run has is an error, and a period that does
/// not divide them is told.
struct StepKey {
  std::string key;
  std::int64_t steps = 0;
  /// Something comes again after so many; false: it begins there, so that some must be left
  bool period = true;
  std::int64_t after = 0;  ///< a period's first begins there
  std::int64_t unit = 1;   ///< the key counts exchanges that are so many steps apart
  /// What a period ends with is used in the step after it, which must be there
  bool used_next = false;
};

/// The facet of needs: what an algorithm does not go without.
struct AlgorithmNeeds {
  /// `sync.topology.type` where the config has none; empty: base-2
  std::string default_topology = {};
  std::vector<std::string> optimizers = {};  ///< those that fit; empty: any
  /// Why settings of an optimizer that fits do not; its result is empty where they do.
  std::function<std::string(const OptimizerRule&)> rule_fault = {};
  /// Why it does not go with fp16, where each rank counts the optimizer's steps by itself, and what
  /// would
  std::string fp16_fault = {};
  /// The model needs so many buckets, which the key is about; 0: any number does.
  struct LeastBuckets {
    std::string key;
    std::int64_t count = 0;
  } least_buckets = {};
  bool by_nodes = false;  ///< it treats a node's ranks apart
  /// Given by the config, and to divide the ranks; 0: not, so it is the topology's, or the hosts'
  std::int64_t ranks_per_node = 0;
};

/// The facet of steps: how they follow each other.
struct AlgorithmSteps {
  std::vector<StepKey> keys = {};
  /// After so many steps the algorithm's own work comes again, beside the topology's and the
  /// rule's, and nothing is in flight between steps; 0: not said, so there are no graphs.
  std::int64_t period = 0;
  /// Its numbers depend on when things happen: needs `"deterministic": false`; ranks' steps may
  /// differ
  bool asynchronous = false;
  /// It counts the optimizer's steps anew now and then: no other algorithm may go on from there
  bool restarts_updates = false;
};

/// The facet of messages: how what is exchanged travels.
struct AlgorithmMessages {
  /// Takes a `sync.exchange` that encodes what travels, in this way
  std::optional<Encoding> encoding = std::nullopt;
  /// Bytes on the wire for each of what it exchanges: below 1 where it encodes by itself
  double wire = 1.0;
  /// Parameters travel as messages, though neighbours could read them where they lie (MixSite)
  bool always = false;
  /// Tensors of the parameters' size that an exchange brings from each neighbour
  int mixed = 1;
  bool mixes_states = false;  ///< and the optimizer's states beside them
};

/// The facet of equality: what is the same on all ranks, to the bit.
struct AlgorithmEquality {
  static constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();
  /// In steps before this one the optimizer gets means over the ranks' gradients.
  std::int64_t means_before = 0;
  /// Where ranks meet now and then: whether a bucket's parameters are equal after so many of its
  /// steps. Bucket of how many.
  std::function<bool(std::int64_t steps, int bucket, int buckets)> after = {};
  bool rule_states = false;  ///< and the optimizer's states beside them
  /// So many of the plan's states, the first, are equal after every step
  int kept = 0;
  bool always() const { return means_before == kAlways; }
  bool any() const { return always() || after || kept > 0; }
};

/// The facet of growth: how the ranks' disagreement moves.
struct AlgorithmGrowth {
  /// Of algorithms that could enlarge it (comm/growth.h)
  std::function<DisagreementModel(const OptimizerRule&)> model = {};
  EncodedModel encoded = {};  ///< where it encodes by itself (comm/consensus.h)
};

/// Something that ranks exchange again and again; comm/planner lays it on a time line.
struct PlannedExchange {
  enum What : std::uint8_t {
    kRounds,          ///< the messages' tensors, by the topology's rounds
    kGradients,       ///< the mean over all ranks, from a bucket's last gradient on
    kGradientChunks,  ///< the same by encoded messages (EncodedMean)
    kModels,          ///< the mean over all ranks of their parameters
  } what = kRounds;
  std::int64_t every = 1;  ///< steps
  /// Steps that it has to arrive while ranks compute, of gradients the rest of the pass; 0: ranks
  /// wait for it
  std::int64_t hidden = 0;
  /// Models: not by steps, but so many seconds after the last one has come; no step waits
  std::optional<double> pause = std::nullopt;
  /// Gradients: the mean inside nodes of so many ranks first; 0: of a host's
  std::int64_t ranks_per_node = 1;
};

/// The facet of cost: what a step takes, in time and in learning.
struct AlgorithmCost {
  /// None: not said, so nothing is chosen by measurement
  std::vector<PlannedExchange> exchanges = {};
  /// How far apart ranks are where gradients are taken: the square of it, in units of what one
  /// update adds. `left` is the sum over k ≥ 0 of what k rounds leave of a disagreement, squared (1
  /// without rounds). 0: they take equal gradients' mean. Without this the planner does not know
  /// what the algorithm costs in learning, and does not recommend it.
  std::function<double(double left)> disagreement = {};
  /// It computes what all-reduce does but for the ranks' disagreement, so that `auto` may choose
  /// all-reduce in its place.
  bool near_all_reduce = false;
  /// Keys with values that the planner tries beside the default ones
  std::vector<std::pair<std::string, std::int64_t>> tried = {};
};

/// What an algorithm is, once its keys are read and before there are buckets or other ranks; and
/// how it is made then. A maker names the members that it has something to say of.
struct AlgorithmPlan {
  std::string name = {};   ///< as the config has it; read_algorithm() fills it in
  std::string title = {};  ///< as reports have it; empty: the name
  TopologyKind topology = TopologyKind::kNone;
  AlgorithmNeeds needs = {};
  std::vector<KeptState> states = {};
  /// Copies of the parameters that it works in and does not keep, beside what neighbours send
  int scratch = 0;
  AlgorithmMessages messages = {};
  AlgorithmSteps steps = {};
  AlgorithmEquality equality = {};
  AlgorithmGrowth growth = {};
  AlgorithmCost cost = {};
  std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> make = {};

  const std::string& label() const { return title.empty() ? name : title; }
};

/// AlgorithmPlan::make of a class whose constructor takes the site and these.
template <class A, class... Args>
std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)> maker_of(Args... args) {
  return [=](const AlgorithmSite& site) { return std::make_unique<A>(site, args...); };
}

/// A maker reads the algorithm's keys but `type`.
using AlgorithmRegistry = Registry<AlgorithmPlan, ConfigSection&>;
AlgorithmRegistry& algorithms();
void register_builtin_algorithms();
/// Reads `type` and the type's keys; a key that belongs to other types is an error that names them.
AlgorithmPlan read_algorithm(ConfigSection& section);
/// The same from a value as `sync.algorithm` takes it: an object, or a type; null: the default.
/// `resolved` becomes the object with every key, whatever an older config said.
AlgorithmPlan algorithm_of(const nlohmann::json& value, nlohmann::json* resolved = nullptr,
                           const std::string& source = "saved config");
/// Every registered type's plan with default keys, by name: for the planner, and for errors that
/// say what would be right.
std::vector<AlgorithmPlan> known_algorithms();
/// Gives the site's buckets the plan's states, where they have none yet, and makes the algorithm.
std::unique_ptr<Algorithm> make_algorithm(const AlgorithmPlan& plan, const AlgorithmSite& site);

}  // namespace starling
