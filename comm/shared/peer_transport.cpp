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
#include "comm/shared/peer_blocks.h"
#include "comm/shared/peer_parts.h"
#include "comm/shared/shared_mixer.h"
#include "comm/transports/checks.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "core/log.h"
#include "core/peer_memory.h"

namespace starling {
namespace {

using detail::DeviceCounts;
using detail::PeerBlocks;
using detail::PeerParts;
using detail::PeerWait;
using detail::SharedLayout;
using Doing = detail::Pulse::Doing;

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
  void check() override;
  /// Throws if the failed wait is one of this object's.
  void report(const PeerMemory::Loss& loss);

 protected:
  bool may_share(const std::vector<Bucket>& buckets) override { return !buckets.empty(); }
  std::string map(std::vector<Bucket>& buckets) override;
  void unmap() override;
  void signal_published(const Progress& now) override;
  void signal_released(const ExchangeLabel& label, std::uint32_t count) override;
  void await_published(const Operation& operation) override {
    const int bucket = operation.label.bucket;
    blocks_.await(operation.read, bucket, &DeviceCounts::published, operation.count, bucket,
                  PeerWait::kNeighbour);
  }
  void await_readers(const Progress::Contents& contents, const Progress& now,
                     const ExchangeLabel& label) override;

 private:
  class Part;

  PeerTransport& peers_;
  PeerBlocks blocks_;
};

/// A transport with mixers that read peers' memory, and with exchanges in replicas that do. Every
/// function throws once a wait of theirs has failed.
class PeerTransport final : public ForwardingTransport {
 public:
  PeerTransport(std::unique_ptr<Transport> between, Backend& backend,
                std::unique_ptr<MemorySharing> sharing, double timeout_seconds,
                std::vector<int> local, bool one_host)
      : ForwardingTransport(std::move(between), world_),
        world_(inner().world(), [this] { check(); }),
        backend_(backend),
        sharing_(std::move(sharing)),
        timeout_seconds_(timeout_seconds),
        local_(std::move(local)),
        one_host_(one_host) {}

  /// Has a replica's ranks read each other's parts. Returns why they cannot, or "". Collective.
  std::string open_parts(int replica, std::size_t piece_bytes) {
    std::string refusal;
    parts_ = PeerParts::open(backend_, inner(), *sharing_, timeout_seconds_, replica, piece_bytes,
                             local_, refusal);
    return refusal;
  }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    check();
    if (!parts_ || !parts_->supports(exchange, send) || flow)
      return inner().start_exchange(exchange, send, receive, label, std::move(flow));
    check_exchange(rank(), size(), exchange, send, receive, DeviceType::kCuda);
    return kOfParts | parts_->start(exchange, send, receive[0], label);
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    check();
    return inner().start_sum(in, out, label, std::move(flow));
  }
  bool done(Ticket ticket) override {
    if ((ticket & kOfParts) == 0) return inner().done(ticket);
    check();
    return parts_->done(ticket & ~kOfParts);
  }
  void wait(Ticket ticket) override {
    if ((ticket & kOfParts) == 0)
      inner().wait(ticket);
    else
      parts_->wait(ticket & ~kOfParts);
    check();
  }
  void check() override {
    inner().check();
    check_waits();
  }
  void check_waits() {
    if (!mixer_ && !parts_) return;
    const auto loss = backend_.peer_memory()->lost();
    if (!loss) return;
    if (parts_) parts_->report(*loss);
    if (mixer_) mixer_->report(*loss);
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
    // A launch advances counters by one a step, pieces of parts are several
    if (parts_)
      return "a replica's ranks read each other's GPU memory; sync.transport nccl has graphs";
    return !prepared_ && one_host_ ? std::string() : inner().why_not_captured();
  }

  /// The mixer that currently shares memory; null: none.
  void watch(PeerMixer* mixer) { mixer_ = mixer; }
  const PeerMixer* watched() const { return mixer_; }

 private:
  static constexpr Ticket kOfParts = Ticket{1} << 62;  ///< set in tickets of parts_

  CheckedWorld world_;
  Backend& backend_;
  std::unique_ptr<MemorySharing> sharing_;
  double timeout_seconds_;
  std::vector<int> local_;  ///< the ranks of this host, ascending, this one included
  bool one_host_;
  bool prepared_ = false;  ///< prepare() was called
  PeerMixer* mixer_ = nullptr;
  std::unique_ptr<PeerParts> parts_;  ///< null: ranks form no replicas
};

PeerMixer::PeerMixer(Backend& backend, PeerTransport& transport, MemorySharing& sharing,
                     double timeout_seconds, std::vector<int> local, bool one_host)
    : SharedMixer(backend, transport,
                  {.memory = "GPU memory", .reads_sums = false, .may_be_flat = false}),
      peers_(transport),
      blocks_(backend, transport, sharing, timeout_seconds, local) {
  local_ = std::move(local);
  one_host_ = one_host;
}

PeerMixer::~PeerMixer() {
  if (peers_.watched() == this) peers_.watch(nullptr);
}

void PeerMixer::check() { peers_.check_waits(); }

void PeerMixer::unmap() {
  if (peers_.watched() == this) peers_.watch(nullptr);
  blocks_.close();
  mappings_.clear();
}

std::string PeerMixer::map(std::vector<Bucket>& buckets) {
  if (PeerMemory* const memory = backend_.peer_memory()) memory->restart();
  const SharedLayout layout(buckets.size() * sizeof(DeviceCounts), buckets);
  std::string refusal = blocks_.open(layout.bytes);
  if (!refusal.empty() || blocks_.blocks().empty()) return refusal;
  map_buffers(blocks_.blocks(), layout, buckets);
  peers_.watch(this);
  return {};
}

void PeerMixer::signal_published(const Progress& now) {
  blocks_.pulse().beat(Doing::kPublished, now.label);
  Event computed;
  {
    const StreamScope scope(backend_, StreamKind::kCompute);
    computed = backend_.record();
  }
  const StreamScope scope(backend_, StreamKind::kUpdate);
  backend_.wait(computed);
  blocks_.signal(now.label.bucket, &DeviceCounts::published, now.count);
}

void PeerMixer::signal_released(const ExchangeLabel& label, std::uint32_t count) {
  if (count == 0) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  blocks_.signal(label.bucket, &DeviceCounts::released, count);
}

void PeerMixer::await_readers(const Progress::Contents& contents, const Progress& now,
                              const ExchangeLabel& label) {
  require(!backend_.capturing() || contents.count + 1 == now.count, "mixer",
          "step {} cannot be captured: bucket {} has been published {} times, and a graph waits "
          "for the readers of the time before",
          label.step, label.bucket, now.count);
  blocks_.await(contents.readers, label.bucket, &DeviceCounts::released, contents.count,
                label.bucket, PeerWait::kReaders);
}

void PeerMixer::report(const PeerMemory::Loss& loss) {
  const auto kind = static_cast<PeerWait>(loss.purpose.kind);
  if (kind != PeerWait::kNeighbour && kind != PeerWait::kReaders) return;
  const Progress& now = mapping_of(loss.purpose.bucket).now;
  const auto back = static_cast<std::int32_t>(now.count - loss.wanted);  // exchanges started since
  const ExchangeLabel label{now.label.step - back, loss.purpose.bucket, now.label.round - back};
  const std::string which =
      fmt::format("step {}, bucket {}, round {}", label.step, label.bucket, label.round);
  blocks_.report(loss,
                 kind == PeerWait::kReaders
                     ? fmt::format("rank {} to have read {}", loss.rank, which)
                     : fmt::format("the parameters of rank {} for {}", loss.rank, which),
                 label);
}

/// The counters of the exchanges in a graph, which advance by one for each bucket in each launch.
class PeerMixer::Part final : public CapturePart {
 public:
  Part(PeerMixer& mixer, std::int64_t step)
      : mixer_(mixer), step_(step), operations_(mixer.operations_) {
    for (const BucketMapping& mapping : mixer.mappings_) before_.push_back(mapping.now);
  }
  ~Part() override {
    if (launched_ || mixer_.mappings_.size() != before_.size()) return;
    for (std::size_t b = 0; b < before_.size(); ++b)
      mixer_.mappings_[b].now = std::move(before_[b]);
    mixer_.operations_ = std::move(operations_);
  }
  void launched(std::int64_t step) override {
    if (before_.empty()) return;
    if (!std::exchange(launched_, true)) {
      for (const BucketMapping& mapping : mixer_.mappings_) captured_.push_back(mapping.now.count);
    } else {
      for (std::size_t b = 0; b < captured_.size(); ++b) {
        if (captured_[b] != before_[b].count)
          record_launch(mixer_.mappings_[b].now,
                        captured_[b] + static_cast<std::uint32_t>(step - step_), step);
      }
    }
    mixer_.blocks_.pulse().beat(Doing::kPublished, mixer_.mappings_.back().now.label);
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
                                               const PeerSettings& settings, std::string& refusal) {
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
  if (refusal.empty())
    refusal = detail::share_peer_blocks(world, ranks.local, memory, 4096).refusal;
  if (!refusal.empty()) return nullptr;
  auto transport =
      std::make_unique<PeerTransport>(std::move(between), backend, std::move(sharing),
                                      settings.timeout_seconds, ranks.local, ranks.one_host);
  if (settings.replica > 1) {
    const std::string why = transport->open_parts(settings.replica, settings.piece_bytes);
    if (!why.empty() && transport->rank() == 0)
      log::info(
          "the ranks of a replica exchange by {}, because their GPU memory cannot be "
          "shared: {}",
          transport->name(), why);
  }
  return transport;
}

std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between,
                                               Backend& backend, const PeerSettings& settings,
                                               std::string& refusal) {
  return make_peer_transport(std::move(between), backend,
                             make_process_sharing(settings.timeout_seconds), settings, refusal);
}

}  // namespace starling
