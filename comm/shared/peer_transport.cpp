#include "comm/shared/peer_transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/other_ranks.h"
#include "comm/shared/descriptors.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/shared_mixer.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "core/peer_memory.h"

namespace starling {
namespace {

using detail::Descriptor;
using detail::SharedLayout;
using Doing = detail::Pulse::Doing;

constexpr double kSwapSeconds = 30.0;

/// A bucket's counters in its owner's device memory, which only that device sets.
struct DeviceCounts {
  alignas(128) std::uint32_t published = 0;  ///< exchanges whose parameters of this rank are final
  /// Exchanges for which this rank has finished reading other ranks' parameters
  alignas(128) std::uint32_t released = 0;
};
enum Purpose { kNeighbour, kReaders };

/// Allocates a zeroed block for every rank that shares its host, and maps the others'. Collective.
HostBlocks<PeerBlock> share_peer_blocks(World& world, const std::vector<int>& local,
                                        PeerMemory* memory, std::size_t bytes) {
  return detail::share_blocks<PeerBlock>(
      world, local, kSwapSeconds,
      [&](Descriptor& file) {
        int number = -1;
        std::shared_ptr<PeerBlock> block = memory->create(bytes, number);
        file = Descriptor(number);
        return block;
      },
      [&](std::size_t, const Descriptor& file) { return memory->map(file.number(), bytes); });
}

class PeerTransport;

/// A mixer with counters in device memory, which streams set and wait for.
class PeerMixer final : public detail::SharedMixer {
 public:
  PeerMixer(Backend& backend, PeerTransport& transport, MemorySharing& sharing,
            double timeout_seconds, std::vector<int> local, bool one_host);
  ~PeerMixer() override;
  std::string name() const override {
    return shares() ? "peer memory + " + transport_.name() : transport_.name();
  }
  /// Empty if all exchanges use peer memory, whatever the underlying transport.
  std::string why_not_captured() const override {
    return shares() && one_host_ && !sums_ ? std::string() : transport_.why_not_captured();
  }
  std::unique_ptr<CapturePart> join_capture(std::int64_t step) override;
  void check() override {
    if (!shares()) return;
    if (const auto loss = memory_->lost()) report(*loss);
  }

 protected:
  bool may_share(const std::vector<Bucket>& buckets) override { return !buckets.empty(); }
  std::string map(std::vector<Bucket>& buckets) override;
  void let_go() override;
  void tell_published(const Progress& now) override;
  void tell_released(const ExchangeLabel& label, std::uint32_t count) override;
  void await_published(const Operation& operation) override {
    await(operation.read, &DeviceCounts::published, operation.count,
          {operation.label.bucket, kNeighbour});
  }
  void await_readers(const Progress::Contents& contents, const Progress& now,
                     const ExchangeLabel& label) override;

 private:
  class Part;

  DeviceCounts& counts_of(int rank, int bucket) const {
    return reinterpret_cast<DeviceCounts*>(
        blocks_.at(rank)->data())[static_cast<std::size_t>(bucket)];
  }
  [[noreturn]] void report(const PeerMemory::Loss& loss);
  void await(const std::vector<int>& ranks, std::uint32_t DeviceCounts::*member,
             std::uint32_t target, const PeerMemory::Purpose& purpose);

  PeerTransport& peers_;
  PeerMemory* memory_;
  MemorySharing& sharing_;
  double timeout_seconds_;
  int exceptions_at_start_;
  std::map<int, std::shared_ptr<PeerBlock>> blocks_;  ///< by rank
  std::vector<std::shared_ptr<SharedBlock>> pulse_blocks_;
  detail::Pulse* pulse_ = nullptr;              ///< this rank's
  std::map<int, const detail::Pulse*> pulses_;  ///< of the ranks of this host
  std::vector<PeerMemory::Awaited> awaited_;    ///< a member to reuse its memory
};

/// A transport with mixers that read peers' memory. Every function throws if such a mixer has
/// detected a loss.
class PeerTransport final : public ForwardingTransport {
 public:
  PeerTransport(std::unique_ptr<Transport> between, std::unique_ptr<MemorySharing> sharing,
                double timeout_seconds, std::vector<int> local, bool one_host)
      : ForwardingTransport(std::move(between), world_),
        world_(inner().world(), [this] { check(); }),
        sharing_(std::move(sharing)),
        timeout_seconds_(timeout_seconds),
        local_(std::move(local)),
        one_host_(one_host) {}

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    check();
    return inner().start_exchange(exchange, send, receive, label, std::move(flow));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    check();
    return inner().start_sum(in, out, label, std::move(flow));
  }
  void wait(Ticket ticket) override {
    inner().wait(ticket);
    check();
  }
  void check() override {
    inner().check();
    if (mixer_) mixer_->check();
  }
  void prepare(const std::vector<std::vector<int>>& groups) override {
    prepared_ = true;
    inner().prepare(groups);
  }
  std::unique_ptr<Mixer> make_mixer(Backend& backend) override {
    return std::make_unique<PeerMixer>(backend, *this, *sharing_, timeout_seconds_, local_,
                                       one_host_);
  }
  /// Empty if all exchanges may use peers, before prepare() has announced them.
  std::string why_not_captured() const override {
    return !prepared_ && one_host_ ? std::string() : inner().why_not_captured();
  }

  /// The mixer that currently shares memory; null: none.
  void watch(PeerMixer* mixer) { mixer_ = mixer; }
  const PeerMixer* watched() const { return mixer_; }

 private:
  CheckedWorld world_;
  std::unique_ptr<MemorySharing> sharing_;
  double timeout_seconds_;
  std::vector<int> local_;  ///< the ranks of this host, ascending, this one included
  bool one_host_;
  bool prepared_ = false;  ///< prepare() was called
  PeerMixer* mixer_ = nullptr;
};

PeerMixer::PeerMixer(Backend& backend, PeerTransport& transport, MemorySharing& sharing,
                     double timeout_seconds, std::vector<int> local, bool one_host)
    : SharedMixer(backend, transport,
                  {.memory = "GPU memory", .reads_sums = false, .may_be_flat = false}),
      peers_(transport),
      memory_(backend.peer_memory()),
      sharing_(sharing),
      timeout_seconds_(timeout_seconds),
      exceptions_at_start_(std::uncaught_exceptions()) {
  local_ = std::move(local);
  one_host_ = one_host;
}

PeerMixer::~PeerMixer() {
  if (pulse_) pulse_->beat(Doing::kEnded);
  if (!shares()) return;
  // Other ranks may never arrive.
  if (std::uncaught_exceptions() > exceptions_at_start_) memory_->give_up();
  let_go();
}

void PeerMixer::let_go() {
  if (peers_.watched() == this) peers_.watch(nullptr);
  try {
    backend_.synchronize();  // the device may be reading memory that is unmapped now
  } catch (...) {            // errors of earlier work are reported by its own waits
  }
  sides_.clear();
  blocks_.clear();
  pulses_.clear();
  pulse_ = nullptr;
  pulse_blocks_.clear();
}

std::string PeerMixer::map(std::vector<Bucket>& buckets) {
  if (memory_) memory_->restart();
  const SharedLayout layout(buckets.size() * sizeof(DeviceCounts), buckets);
  World& world = transport_.world();
  SharedBlocks pulses = sharing_.share(world, local_, detail::ControlBlock::bytes(0));
  if (!pulses.refusal.empty()) return pulses.refusal;
  const HostBlocks<PeerBlock> blocks = share_peer_blocks(world, local_, memory_, layout.bytes);
  if (!blocks.refusal.empty() || local_.size() == 1) return blocks.refusal;
  pulse_blocks_ = std::move(pulses.of);
  for (std::size_t k = 0; k < local_.size(); ++k) {
    const int owner = local_[k];
    const bool own = owner == transport_.rank();
    blocks_[owner] = blocks.of[k];
    std::byte* const host = pulse_blocks_[k]->data();
    if (own) pulse_ = &detail::ControlBlock::make(host, 0)->pulse;
    pulses_[owner] = own ? pulse_ : &reinterpret_cast<const detail::ControlBlock*>(host)->pulse;
  }
  take_sides(blocks.of, layout, buckets);
  peers_.watch(this);
  return {};
}

void PeerMixer::tell_published(const Progress& now) {
  pulse_->beat(Doing::kPublished, now.label);
  Event computed;
  {
    const StreamScope scope(backend_, StreamKind::kCompute);
    computed = backend_.record();
  }
  const StreamScope scope(backend_, StreamKind::kUpdate);
  backend_.wait(computed);
  memory_->signal(&counts_of(transport_.rank(), now.label.bucket).published, now.count);
}

void PeerMixer::tell_released(const ExchangeLabel& label, std::uint32_t count) {
  if (count == 0) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  memory_->signal(&counts_of(transport_.rank(), label.bucket).released, count);
}

void PeerMixer::await_readers(const Progress::Contents& contents, const Progress& now,
                              const ExchangeLabel& label) {
  require(!backend_.capturing() || contents.count + 1 == now.count, "mixer",
          "step {} cannot be captured: bucket {} has been published {} times, and a graph waits "
          "for the readers of the time before",
          label.step, label.bucket, now.count);
  await(contents.readers, &DeviceCounts::released, contents.count, {label.bucket, kReaders});
}

void PeerMixer::await(const std::vector<int>& ranks, std::uint32_t DeviceCounts::*member,
                      std::uint32_t target, const PeerMemory::Purpose& purpose) {
  if (ranks.empty()) return;
  awaited_.clear();
  for (const int r : ranks) awaited_.push_back({&(counts_of(r, purpose.bucket).*member), r});
  memory_->await(awaited_, target, purpose, timeout_seconds_);
}

void PeerMixer::report(const PeerMemory::Loss& loss) {
  const Progress& now = side_of(loss.purpose.bucket).now;
  const auto back = static_cast<std::int32_t>(now.count - loss.wanted);  // exchanges started since
  const ExchangeLabel label{now.label.step - back, loss.purpose.bucket, now.label.round - back};
  const std::string which =
      fmt::format("step {}, bucket {}, round {}", label.step, label.bucket, label.round);
  const std::string what = loss.purpose.kind == kReaders
                               ? fmt::format("rank {} to have read {}", loss.rank, which)
                               : fmt::format("the parameters of rank {} for {}", loss.rank, which);
  const detail::Pulse& pulse = *pulses_.at(loss.rank);
  fail_wait(transport_.rank(), what, label, timeout_seconds_,
            {{loss.rank, pulse.seconds_ago(), pulse.text(), true}});
}

/// The counters of the exchanges in a graph, which advance by one for each bucket in each launch.
class PeerMixer::Part final : public CapturePart {
 public:
  Part(PeerMixer& mixer, std::int64_t step)
      : mixer_(mixer), step_(step), operations_(mixer.operations_) {
    for (const Side& side : mixer.sides_) before_.push_back(side.now);
  }
  ~Part() override {
    if (launched_ || mixer_.sides_.size() != before_.size()) return;
    for (std::size_t b = 0; b < before_.size(); ++b) mixer_.sides_[b].now = std::move(before_[b]);
    mixer_.operations_ = std::move(operations_);
  }
  void launched(std::int64_t step) override {
    if (before_.empty()) return;
    if (!std::exchange(launched_, true)) {
      for (const Side& side : mixer_.sides_) captured_.push_back(side.now.count);
    } else {
      for (std::size_t b = 0; b < captured_.size(); ++b) {
        if (captured_[b] != before_[b].count)
          record_launch(mixer_.sides_[b].now,
                        captured_[b] + static_cast<std::uint32_t>(step - step_), step);
      }
    }
    mixer_.pulse_->beat(Doing::kPublished, mixer_.sides_.back().now.label);
    mixer_.check();
  }

 private:
  /// Accounts for a launch: the other buffer was published, and all ranks of the host may have read
  /// it.
  void record_launch(Progress& now, std::uint32_t target, std::int64_t step) {
    require(now.count + 1 == target, "mixer",
            "a graph of step {} makes exchange {} of a bucket, after exchange {}", step, target,
            now.count);
    Progress::Contents& contents = now.contents[1 - now.last()];
    contents.count = ++now.count;
    contents.readers.clear();
    for (const int r : mixer_.local_) {
      if (r != mixer_.transport_.rank()) contents.readers.push_back(r);
    }
    ++now.label.step;
    ++now.label.round;
  }

  PeerMixer& mixer_;
  std::int64_t step_;             ///< the captured step
  std::vector<Progress> before_;  ///< by bucket
  std::unordered_map<Ticket, Operation> operations_;
  std::vector<std::uint32_t> captured_;  ///< by bucket: the counter of its captured exchange
  bool launched_ = false;
};

std::unique_ptr<CapturePart> PeerMixer::join_capture(std::int64_t step) {
  return std::make_unique<Part>(*this, step);
}

/// Why this rank and another of its host cannot access each other's memory, according to this rank;
/// empty if they can.
std::string why_not_here(PeerMemory* memory, int rank, const std::vector<int>& local,
                         const std::vector<std::string>& devices) {
  if (!memory) return "its device has no memory that ranks can share";
  try {
    if (std::string why = memory->why_not_exported(); !why.empty()) return why;
    for (const int other : local) {
      if (other == rank) continue;
      const std::string why = memory->why_not_reached(devices[static_cast<std::size_t>(other)]);
      if (!why.empty()) return fmt::format("the GPU of rank {}: {}", other, why);
    }
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

}  // namespace

std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend,
                                               std::unique_ptr<MemorySharing> sharing,
                                               double timeout_seconds, std::string& refusal) {
  refusal.clear();
  World& world = between->world();
  const HostRanks ranks = find_hosts(world, sharing->host());
  if (!ranks.any_share) return nullptr;
  PeerMemory* memory = nullptr;
  std::string mine, device;
  try {
    memory = backend.peer_memory();
    if (memory) device = memory->device();
  } catch (const Error& error) {
    mine = error.message();
  }
  const std::vector<std::string> devices = world.all_gather(device);
  if (mine.empty() && ranks.local.size() > 1)
    mine = why_not_here(memory, world.rank(), ranks.local, devices);
  if (const auto reason = lowest_reason(world, mine)) refusal = reason->text();
  if (refusal.empty()) refusal = share_peer_blocks(world, ranks.local, memory, 4096).refusal;
  if (!refusal.empty()) return nullptr;
  return std::make_unique<PeerTransport>(std::move(between), std::move(sharing), timeout_seconds,
                                         ranks.local, ranks.one_host);
}

std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend, double timeout_seconds,
                                               std::string& refusal) {
  return make_peer_transport(std::move(between), backend, make_process_sharing(timeout_seconds),
                             timeout_seconds, refusal);
}

}  // namespace starling
