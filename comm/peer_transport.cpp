#include "comm/peer_transport.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "comm/descriptors.h"
#include "comm/direct_control.h"
#include "comm/neighbour_split.h"
#include "comm/shared_buckets.h"
#include "comm/transport_checks.h"
#include "core/error.h"
#include "core/log.h"
#include "core/peer_memory.h"

namespace starling {
namespace {

using detail::Descriptor;
using detail::SharedLayout;
using Doing = detail::Pulse::Doing;

constexpr std::size_t kPage = 4096;
constexpr double kSwapSeconds = 30.0;

/// A bucket's counts, in its owner's device memory: its device alone sets them.
struct DeviceCounts {
  alignas(128) std::uint32_t published = 0;  ///< exchanges whose parameters of this rank are final
  alignas(128) std::uint32_t released = 0;   ///< exchanges up to which this rank reads nobody's parameters any more
};
enum Purpose { kNeighbour, kReaders };

/// The blocks of a host's ranks, at their places in `local`.
struct PeerBlocks {
  std::vector<std::shared_ptr<PeerBlock>> of;
  std::string refusal;
};

/// An error's text without the component.
std::string reason_of(const Error& error) {
  const std::string text = error.what();
  const auto end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

/// Collective: every rank of a host with others gets a zeroed block of its own, and maps theirs.
PeerBlocks share_blocks(Transport& control, const std::vector<int>& local, PeerMemory* memory, std::size_t bytes) {
  PeerBlocks blocks;
  blocks.of.resize(local.size());
  const auto own = static_cast<std::size_t>(std::find(local.begin(), local.end(), control.rank()) - local.begin());
  const auto refusing = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      throw detail::Refused{reason_of(error)};
    }
  };
  blocks.refusal = detail::swap_descriptors(
      control, local, kSwapSeconds,
      [&] {
        int number = -1;
        refusing([&] { blocks.of[own] = memory->create(bytes, number); });
        return Descriptor(number);
      },
      [&](std::size_t place, const Descriptor& file) { refusing([&] { blocks.of[place] = memory->map(file.number(), bytes); }); });
  if (!blocks.refusal.empty()) blocks.of.clear();
  return blocks;
}

/// What this rank knows of a bucket's exchanges.
struct Progress {
  std::uint32_t count = 0;  ///< exchanges started
  ExchangeLabel label;      ///< of the last
  /// Per buffer: the exchange that last published its contents, and who reads them.
  struct Contents {
    std::uint32_t count = 0;
    std::vector<int> readers;
  };
  std::array<Contents, 2> contents;
  std::size_t last() const { return contents[0].count == count ? 0 : 1; }  ///< the buffer that was published last
};

struct Side {
  std::array<Tensor, 2> own;
  std::map<int, std::array<Tensor, 2>> others;  ///< by rank
  Progress now;
  std::size_t active(const Bucket& bucket) const { return bucket.parameters.raw() == own[0].raw() ? 0 : 1; }
};

class PeerTransport final : public Transport {
 public:
  PeerTransport(std::unique_ptr<Transport> between, Backend& backend, std::unique_ptr<MemorySharing> sharing, const PeerSettings& settings,
                std::vector<int> local, bool one_host)
      : between_(std::move(between)),
        backend_(backend),
        memory_(backend.peer_memory()),
        sharing_(std::move(sharing)),
        settings_(settings),
        local_(std::move(local)),
        one_host_(one_host),
        exceptions_at_start_(std::uncaught_exceptions()) {}
  ~PeerTransport() override {
    if (pulse_) pulse_->beat(Doing::kEnded);
    if (blocks_.empty()) return;
    if (std::uncaught_exceptions() > exceptions_at_start_) memory_->give_up();  // others may never come
    let_go();
  }

  int rank() const override { return between_->rank(); }
  int size() const override { return between_->size(); }
  int local_rank() const override { return between_->local_rank(); }
  int local_size() const override { return between_->local_size(); }
  std::string name() const override { return sides_.empty() ? between_->name() : "peer memory + " + between_->name(); }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    check();
    return passed_on(between_->start_exchange(exchange, send, receive, label, std::move(flow)));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label, std::shared_ptr<Flow> flow) override {
    check();
    return passed_on(between_->start_sum(in, out, label, std::move(flow)));
  }
  bool done(Ticket ticket) override;
  void wait(Ticket ticket) override;
  void prepare(const std::vector<std::vector<int>>& groups) override {
    sums_ = sums_ || !groups.empty();
    known_ = true;
    between_->prepare(groups);
  }

  void share(Backend& backend, std::vector<Bucket>& buckets) override;
  std::size_t buffers_for(const Exchange& exchange) const override;
  Ticket start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                   const ExchangeLabel& label) override;
  void release(const ExchangeLabel& label) override;
  void wait_until_writable(const ExchangeLabel& label) override;

  /// Before it is known what is exchanged, whether all of it may go by peers.
  std::string why_not_captured() const override {
    return (known_ ? all_by_peers() : one_host_) ? std::string() : between_->why_not_captured();
  }
  void launched(std::int64_t step) override;

  void barrier() override { control().barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override { control().broadcast(data, bytes, root); }
  std::vector<std::string> all_gather(const std::string& mine) override { return control().all_gather(mine); }
  void sum(double* values, std::size_t count) override { control().sum(values, count); }
  void max(double* values, std::size_t count) override { control().max(values, count); }

 private:
  /// A bucket's exchange under way: those whose parameters are read here, and what goes by `between`.
  struct Operation {
    int bucket = 0;
    std::uint32_t count = 0;
    std::vector<int> read;
    Ticket between = 0;
    bool has_between = false;
  };
  /// As it was before the capture that is under way, or that nobody has launched yet.
  struct Before {
    std::vector<Progress> progress;
    std::unordered_map<Ticket, Operation> operations;
  };
  // Even tickets are `between`'s, odd ones our own; 0 is none.
  static Ticket passed_on(Ticket ticket) { return ticket * 2; }
  static bool is_own(Ticket ticket) { return ticket % 2 == 1; }

  bool is_local(int rank) const { return std::binary_search(local_.begin(), local_.end(), rank); }
  bool all_by_peers() const { return !sides_.empty() && one_host_ && !sums_; }
  Transport& control() {
    check();
    return *between_;
  }
  Side& side_of(int bucket) {
    require(bucket >= 0 && static_cast<std::size_t>(bucket) < sides_.size(), "transport", "bucket {} is not shared", bucket);
    return sides_[static_cast<std::size_t>(bucket)];
  }
  DeviceCounts& counts_of(int rank, int bucket) const {
    return reinterpret_cast<DeviceCounts*>(blocks_.at(rank)->data())[static_cast<std::size_t>(bucket)];
  }

  void adopt(Backend& backend, std::vector<Bucket>& buckets, const SharedLayout& layout, const PeerBlocks& blocks);
  void let_go() noexcept;
  void check() {
    if (sides_.empty()) return;
    if (const auto loss = memory_->lost()) report(*loss);
  }
  [[noreturn]] void report(const PeerMemory::Loss& loss);
  void follow_captures();
  void forget_capture();
  void await(const std::vector<int>& ranks, std::uint32_t DeviceCounts::*member, std::uint32_t target, const PeerMemory::Purpose& purpose);

  std::unique_ptr<Transport> between_;
  Backend& backend_;
  PeerMemory* memory_;
  std::unique_ptr<MemorySharing> sharing_;
  PeerSettings settings_;
  std::vector<int> local_;  ///< the ranks of this host, ascending, this one included
  bool one_host_;
  bool asked_ = false;  ///< share() has been called
  bool known_ = false;  ///< so, or prepare(): what goes which way is known
  bool sums_ = false;
  int exceptions_at_start_;
  std::map<int, std::shared_ptr<PeerBlock>> blocks_;  ///< by rank
  std::vector<std::shared_ptr<SharedBlock>> pulse_blocks_;
  detail::Pulse* pulse_ = nullptr;              ///< this rank's
  std::map<int, const detail::Pulse*> pulses_;  ///< of the ranks of this host
  std::vector<Side> sides_;                     ///< per bucket; empty where nothing is shared
  std::unordered_map<Ticket, Operation> operations_;
  std::unordered_set<Ticket> forgotten_;  ///< of captures that came to nothing: a wait for one is over at once
  Ticket last_ = 0;
  std::optional<Before> before_;
  std::optional<std::uint32_t> count_at_zero_;  ///< of graphs: what the count would be in step 0
  std::vector<PeerMemory::Awaited> awaited_;    ///< kept for its memory
};

void PeerTransport::let_go() noexcept {
  try {
    backend_.synchronize();  // the device may read what is unmapped now
  } catch (...) {            // an error of earlier work; whoever cares has asked before
  }
  sides_.clear();
  blocks_.clear();
  pulses_.clear();
  pulse_ = nullptr;
  pulse_blocks_.clear();
}

void PeerTransport::share(Backend& backend, std::vector<Bucket>& buckets) {
  known_ = true;
  if (buckets.empty()) return;
  const auto is_own = [&](const Tensor& x) { return x && x.raw() == sides_[0].own[0].raw(); };
  const bool same =
      sides_.empty() ? asked_ : sides_.size() == buckets.size() && (is_own(buckets[0].parameters) || is_own(buckets[0].spare));
  asked_ = true;
  const std::vector<std::string> all = between_->all_gather(same ? "same" : "other");
  if (std::count(all.begin(), all.end(), "other") == 0) return;
  require(operations_.empty(), "transport", "other buckets were shared with {} exchanges under way", operations_.size());
  let_go();
  if (memory_) memory_->restart();
  before_.reset();
  count_at_zero_.reset();
  const SharedLayout layout(buckets.size() * sizeof(DeviceCounts), buckets);
  const SharedBlocks pulses = sharing_->share(*between_, local_, detail::ControlBlock::bytes(0));
  PeerBlocks blocks;
  blocks.refusal = pulses.refusal;
  if (blocks.refusal.empty()) blocks = share_blocks(*between_, local_, memory_, layout.bytes);
  if (!blocks.refusal.empty()) {
    log::info("ranks of one host exchange by {}, because their GPU memory cannot be shared: {}", between_->name(), blocks.refusal);
    return;
  }
  if (local_.size() > 1) {
    pulse_blocks_ = pulses.of;
    adopt(backend, buckets, layout, blocks);
  }
  between_->barrier();  // every pulse is made
}

void PeerTransport::adopt(Backend& backend, std::vector<Bucket>& buckets, const SharedLayout& layout, const PeerBlocks& blocks) {
  sides_.assign(buckets.size(), {});
  for (std::size_t k = 0; k < local_.size(); ++k) {
    const int owner = local_[k];
    const bool own = owner == rank();
    blocks_[owner] = blocks.of[k];
    std::byte* const host = pulse_blocks_[k]->data();
    if (own) pulse_ = &detail::ControlBlock::make(host, 0)->pulse;
    pulses_[owner] = own ? pulse_ : &reinterpret_cast<const detail::ControlBlock*>(host)->pulse;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::array<Tensor, 2>& buffers = own ? sides_[b].own : sides_[b].others[owner];
      buffers = detail::buffers_in(blocks.of[k], layout.offsets[b], backend, buckets[b].parameters);
    }
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) detail::move_into(sides_[b].own, backend, buckets[b]);
}

std::size_t PeerTransport::buffers_for(const Exchange& exchange) const {
  if (sides_.empty() || exchange.kind != Exchange::Kind::kNeighbours) return exchange.received();
  return static_cast<std::size_t>(
      std::count_if(exchange.receive_from.begin(), exchange.receive_from.end(), [&](int r) { return !is_local(r); }));
}

Ticket PeerTransport::start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
                                std::vector<Tensor>& received, const ExchangeLabel& label) {
  if (sides_.empty()) return passed_on(between_->start_mix(exchange, bucket, buffers, received, label));
  check();
  Side& side = side_of(label.bucket);
  if (before_ && side.now.count != before_->progress[static_cast<std::size_t>(label.bucket)].count) forget_capture();
  follow_captures();
  const std::size_t at = side.active(bucket);
  require(bucket.parameters.raw() == side.own[at].raw(), "transport", "bucket {} is not the one that was shared", label.bucket);
  require(buffers.size() >= buffers_for(exchange), "transport", "{} buffers for an exchange that needs {}", buffers.size(),
          buffers_for(exchange));
  received.clear();

  Operation operation{label.bucket, side.now.count + 1, {}, 0, false};
  std::vector<int> readers;
  if (exchange.kind == Exchange::Kind::kNeighbours) {
    detail::NeighbourSplit split = detail::split_neighbours(
        exchange, buffers, received, [&](int peer) { return is_local(peer); },
        [&](int peer) { return side.others.at(peer)[at]; });  // all ranks change buffers together
    operation.read = std::move(split.read);
    readers = std::move(split.readers);
    if (split.has_rest()) {
      operation.between = between_->start_exchange(split.rest, bucket.parameters, split.places, label);
      operation.has_between = true;
    }
  } else if (exchange.kind != Exchange::Kind::kNone) {
    received.push_back(buffers[0]);
    operation.between = between_->start_exchange(exchange, bucket.parameters, received, label);
    operation.has_between = true;
  }

  Progress& now = side.now;
  now.count = operation.count;
  now.label = label;
  Progress::Contents& contents = now.contents[at];
  contents.count = now.count;
  detail::add_readers(readers, contents.readers);
  pulse_->beat(Doing::kPublished, label);
  Event computed;
  {
    const StreamScope scope(backend_, StreamKind::kCompute);
    computed = backend_.record();
  }
  {
    const StreamScope scope(backend_, StreamKind::kUpdate);
    backend_.wait(computed);
    memory_->signal(&counts_of(rank(), label.bucket).published, now.count);
  }
  if (operation.read.empty() && !operation.has_between) return 0;
  const Ticket ticket = ++last_ * 2 - 1;
  operations_.emplace(ticket, std::move(operation));
  return ticket;
}

/// Of a peer's parameters the host knows nothing: they are awaited on the device.
bool PeerTransport::done(Ticket ticket) {
  if (!is_own(ticket)) return ticket == 0 || between_->done(ticket / 2);
  if (forgotten_.count(ticket) != 0) return true;
  const auto it = operations_.find(ticket);
  require(it != operations_.end(), "transport", "ticket {} is not under way", ticket);
  return !it->second.has_between || between_->done(it->second.between);
}

void PeerTransport::wait(Ticket ticket) {
  if (ticket == 0) return;
  if (!is_own(ticket)) {
    between_->wait(ticket / 2);
    return check();
  }
  check();
  follow_captures();
  if (forgotten_.erase(ticket) != 0) return;
  const auto it = operations_.find(ticket);
  require(it != operations_.end(), "transport", "ticket {} is not under way", ticket);
  const Operation& operation = it->second;
  await(operation.read, &DeviceCounts::published, operation.count, {operation.bucket, kNeighbour});
  if (operation.has_between) between_->wait(operation.between);
  operations_.erase(it);
}

void PeerTransport::release(const ExchangeLabel& label) {
  if (sides_.empty()) return between_->release(label);
  check();
  follow_captures();
  const std::uint32_t count = side_of(label.bucket).now.count;
  if (count == 0) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  memory_->signal(&counts_of(rank(), label.bucket).released, count);
}

void PeerTransport::wait_until_writable(const ExchangeLabel& label) {
  if (sides_.empty()) return between_->wait_until_writable(label);
  check();
  follow_captures();
  Progress& now = side_of(label.bucket).now;
  if (now.count == 0) return;
  // The parameters are what the last start_mix() published; the other buffer is what will be written.
  Progress::Contents& contents = now.contents[1 - now.last()];
  require(!backend_.capturing() || contents.count + 1 == now.count, "transport",
          "step {} cannot be captured: bucket {} has been published {} times, and a graph waits for the readers of the time before",
          label.step, label.bucket, now.count);
  await(contents.readers, &DeviceCounts::released, contents.count, {label.bucket, kReaders});
  contents.readers.clear();
}

void PeerTransport::await(const std::vector<int>& ranks, std::uint32_t DeviceCounts::*member, std::uint32_t target,
                          const PeerMemory::Purpose& purpose) {
  if (ranks.empty()) return;
  awaited_.clear();
  for (const int r : ranks) awaited_.push_back({&(counts_of(r, purpose.bucket).*member), r});
  memory_->await(awaited_, target, purpose, settings_.timeout_seconds);
}

void PeerTransport::report(const PeerMemory::Loss& loss) {
  const Progress& now = side_of(loss.purpose.bucket).now;
  const auto back = static_cast<std::int32_t>(now.count - loss.wanted);  // exchanges started since
  const std::string what = loss.purpose.kind == kReaders
                               ? fmt::format("rank {} to have read step {}, bucket {}, round {}", loss.rank, now.label.step - back,
                                             loss.purpose.bucket, now.label.round - back)
                               : fmt::format("the parameters of rank {} for step {}, bucket {}, round {}", loss.rank, now.label.step - back,
                                             loss.purpose.bucket, now.label.round - back);
  const detail::Pulse& pulse = *pulses_.at(loss.rank);
  fail_wait(rank(), what, settings_.timeout_seconds, {{loss.rank, pulse.seconds_ago(), pulse.text(), true}});
}

/// Before anything counts in a capture, keeps what it was; once a capture has come to nothing, takes that back.
void PeerTransport::follow_captures() {
  const bool capturing = backend_.capturing();
  if (capturing == before_.has_value()) return;
  if (!capturing) return forget_capture();
  before_.emplace();
  for (const Side& side : sides_) before_->progress.push_back(side.now);
  before_->operations = operations_;
}

void PeerTransport::forget_capture() {
  for (std::size_t b = 0; b < sides_.size(); ++b) sides_[b].now = std::move(before_->progress[b]);
  for (const auto& [ticket, operation] : operations_) {
    if (before_->operations.count(ticket) == 0) forgotten_.insert(ticket);
  }
  operations_ = std::move(before_->operations);
  before_.reset();
}

void PeerTransport::launched(std::int64_t step) {
  between_->launched(step);
  if (sides_.empty()) return;
  const auto number = static_cast<std::uint32_t>(step);
  const bool captured = std::exchange(before_, std::nullopt).has_value();
  if (captured && !count_at_zero_) count_at_zero_ = sides_[0].now.count - number;
  require(count_at_zero_.has_value(), "transport", "a graph was launched in step {}, but none was captured", step);
  const std::uint32_t target = *count_at_zero_ + number;
  for (Side& side : sides_) {
    Progress& now = side.now;
    if (now.count == target) continue;
    require(!captured && now.count + 1 == target, "transport", "a graph of step {} makes exchange {} of a bucket, after exchange {}", step,
            target, now.count);
    // What the graph did: it published the buffer that was not the last. All ranks of the host may have read it.
    Progress::Contents& contents = now.contents[1 - now.last()];
    contents.count = ++now.count;
    contents.readers.clear();
    for (const int r : local_) {
      if (r != rank()) contents.readers.push_back(r);
    }
    ++now.label.step;
    ++now.label.round;
  }
  pulse_->beat(Doing::kPublished, sides_.back().now.label);
  check();
}

/// Why two ranks of a host, this one among them, cannot use each other's memory; by what this rank knows.
std::string why_not_here(PeerMemory* memory, int rank, const std::vector<int>& local, const std::vector<std::string>& devices) {
  if (!memory) return "its device has no memory that ranks can share";
  try {
    if (std::string why = memory->why_not_exported(); !why.empty()) return why;
    for (const int other : local) {
      if (other == rank) continue;
      const std::string why = memory->why_not_reached(devices[static_cast<std::size_t>(other)]);
      if (!why.empty()) return fmt::format("the GPU of rank {}: {}", other, why);
    }
  } catch (const Error& error) {
    return reason_of(error);
  }
  return {};
}

}  // namespace

std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between, Backend& backend,
                                               std::unique_ptr<MemorySharing> sharing, const PeerSettings& settings, std::string& refusal) {
  refusal.clear();
  Transport& control = *between;
  const std::vector<std::string> hosts = control.all_gather(sharing->host());
  std::vector<int> local;
  std::map<std::string, int> ranks_of;
  for (int r = 0; r < control.size(); ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    if (host == hosts[static_cast<std::size_t>(control.rank())]) local.push_back(r);
    ++ranks_of[host];
  }
  if (std::all_of(ranks_of.begin(), ranks_of.end(), [](const auto& host) { return host.second == 1; })) return nullptr;
  PeerMemory* memory = nullptr;
  std::string mine, device;
  try {
    memory = backend.peer_memory();
    if (memory) device = memory->device();
  } catch (const Error& error) {
    mine = reason_of(error);
  }
  const std::vector<std::string> devices = control.all_gather(device);
  if (mine.empty() && local.size() > 1) mine = why_not_here(memory, control.rank(), local, devices);
  refusal = first_failure(control.all_gather(mine));
  if (refusal.empty()) refusal = share_blocks(control, local, memory, kPage).refusal;
  if (!refusal.empty()) return nullptr;
  return std::make_unique<PeerTransport>(std::move(between), backend, std::move(sharing), settings, std::move(local), ranks_of.size() == 1);
}

std::unique_ptr<Transport> make_peer_transport(std::unique_ptr<Transport>&& between, Backend& backend, const PeerSettings& settings,
                                               std::string& refusal) {
  return make_peer_transport(std::move(between), backend, make_process_sharing(settings.timeout_seconds), settings, refusal);
}

}  // namespace starling
