#include "comm/direct_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/bucket.h"
#include "comm/direct_control.h"
#include "comm/neighbour_split.h"
#include "comm/shared_buckets.h"
#include "comm/transport_checks.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

using detail::BucketCounts;
using detail::ControlBlock;
using detail::SharedLayout;
using Clock = std::chrono::steady_clock;
using Doing = detail::Pulse::Doing;

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kSlice = std::chrono::milliseconds(20);  // of a long wait, between checks
constexpr double kLateSeconds = 10.0;                   // after which a rank is called late, at first

Clock::duration seconds(double value) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value)); }

bool contains(const std::vector<int>& ranks, int rank) { return std::binary_search(ranks.begin(), ranks.end(), rank); }

/// What this rank knows of one bucket.
struct BucketSide {
  std::array<Tensor, 2> own;
  std::map<int, std::array<Tensor, 2>> others;  ///< by rank
  std::uint32_t count = 0;                      ///< exchanges started
  /// Per buffer: the exchange that last published its contents, and who reads them.
  struct Contents {
    std::uint32_t count = 0;
    std::vector<int> readers;
  };
  std::array<Contents, 2> contents;
  int active(const Bucket& bucket) const { return bucket.parameters.raw() == own[0].raw() ? 0 : 1; }
};

class DirectTransport final : public Transport {
 public:
  DirectTransport(std::unique_ptr<Transport> between, std::unique_ptr<MemorySharing> sharing, const DirectSettings& settings)
      : between_(std::move(between)), sharing_(std::move(sharing)), settings_(settings) {}
  ~DirectTransport() override {
    if (control_) control_->pulse.beat(Doing::kEnded);
  }

  int rank() const override { return between_->rank(); }
  int size() const override { return between_->size(); }
  int local_rank() const override { return between_->local_rank(); }
  int local_size() const override { return between_->local_size(); }
  std::string name() const override {
    if (sides_.empty()) return between_->name();
    return one_host_ ? "direct" : "direct+" + between_->name();
  }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    return passed_on(between_->start_exchange(exchange, send, receive, label, std::move(flow)));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label, std::shared_ptr<Flow> flow) override {
    return passed_on(between_->start_sum(in, out, label, std::move(flow)));
  }
  bool done(Ticket ticket) override;
  void wait(Ticket ticket) override;

  void share(Backend& backend, std::vector<Bucket>& buckets) override;
  bool shares_with_all() const override { return one_host_ && !sides_.empty(); }
  std::size_t buffers_for(const Exchange& exchange) const override;
  Ticket start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                   const ExchangeLabel& label) override;
  void release(const ExchangeLabel& label) override;
  void wait_until_writable(const ExchangeLabel& label) override;

  void barrier() override { between_->barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override { between_->broadcast(data, bytes, root); }
  std::vector<std::string> all_gather(const std::string& mine) override { return between_->all_gather(mine); }
  void sum(double* values, std::size_t count) override { between_->sum(values, count); }
  void max(double* values, std::size_t count) override { between_->max(values, count); }

 private:
  /// A bucket's exchange under way: those whose parameters are read here, and what goes by `between`.
  struct Operation {
    Exchange exchange;
    ExchangeLabel label;
    std::uint32_t count = 0;
    std::vector<int> read;
    Ticket between = 0;
    bool has_between = false;
  };
  // Even tickets are `between`'s, odd ones our own; 0 is none.
  static Ticket passed_on(Ticket ticket) { return ticket * 2; }
  static bool is_own(Ticket ticket) { return ticket % 2 == 1; }

  bool is_local(int rank) const { return contains(local_, rank); }
  bool direct_sum(const Exchange& exchange) const {
    return exchange.kind == Exchange::Kind::kGroupSum &&
           std::all_of(exchange.group.begin(), exchange.group.end(), [&](int r) { return is_local(r); });
  }
  ControlBlock& control_of(int rank) const { return *controls_.at(rank); }
  BucketCounts& counts_of(int rank, int bucket) const { return *control_of(rank).counts(static_cast<std::size_t>(bucket)); }
  BucketSide& side_of(int bucket) {
    require(bucket >= 0 && static_cast<std::size_t>(bucket) < sides_.size(), "transport", "bucket {} is not shared", bucket);
    return sides_[static_cast<std::size_t>(bucket)];
  }

  void find_hosts();
  void adopt(Backend& backend, std::vector<Bucket>& buckets, const SharedLayout& layout,
             const std::vector<std::shared_ptr<SharedBlock>>& blocks);
  /// The member of BucketCounts comes to `target` on each of the ranks, within the limit; warns once of each rank that takes long. what()
  /// names what is waited for.
  template <class What>
  void await(const std::vector<int>& ranks, std::atomic<std::uint32_t> BucketCounts::*member, std::uint32_t target, Doing doing,
             const ExchangeLabel& label, const What& what);

  std::unique_ptr<Transport> between_;
  std::unique_ptr<MemorySharing> sharing_;
  DirectSettings settings_;
  std::vector<int> local_;  ///< the ranks of this host, ascending, this one included
  bool hosts_known_ = false, one_host_ = false, any_shares_ = false;
  ControlBlock* control_ = nullptr;        ///< this rank's
  std::map<int, ControlBlock*> controls_;  ///< of the ranks of this host
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  std::vector<BucketSide> sides_;  ///< per bucket; empty where nothing is shared
  std::unordered_map<Ticket, Operation> operations_;
  Ticket last_ = 0;
  std::map<int, double> late_after_;  ///< doubles with every warning about the rank
};

void DirectTransport::find_hosts() {
  if (hosts_known_) return;
  hosts_known_ = true;
  const std::vector<std::string> hosts = between_->all_gather(sharing_->host());
  const std::string& mine = hosts[static_cast<std::size_t>(rank())];
  std::map<std::string, int> ranks_of;
  for (int r = 0; r < size(); ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    if (host == mine) local_.push_back(r);
    any_shares_ |= ++ranks_of[host] > 1;
  }
  one_host_ = ranks_of.size() == 1;
}

void DirectTransport::share(Backend& backend, std::vector<Bucket>& buckets) {
  if (size() == 1 || buckets.empty() || backend.device() != DeviceType::kCpu) return;
  find_hosts();
  if (!any_shares_) return;
  const auto is_own = [&](const Tensor& x) { return x && x.raw() == sides_[0].own[0].raw(); };
  const bool same = sides_.size() == buckets.size() && (is_own(buckets[0].parameters) || is_own(buckets[0].spare));
  // A rank that is alone on its host has nothing by which it could know.
  const std::vector<std::string> all = between_->all_gather(same || local_.size() == 1 ? "same" : "other");
  if (std::count(all.begin(), all.end(), "other") == 0) return;
  require(operations_.empty(), "transport", "other buckets were shared with {} exchanges under way", operations_.size());
  sides_.clear();
  controls_.clear();
  control_ = nullptr;
  blocks_.clear();
  const SharedLayout layout(ControlBlock::bytes(buckets.size()), buckets);
  const SharedBlocks blocks = sharing_->share(*between_, local_, layout.bytes);
  if (!blocks.refusal.empty()) {
    log::info("ranks of one host exchange by {}, because their memory cannot be shared: {}", between_->name(), blocks.refusal);
    return;
  }
  if (local_.size() > 1) adopt(backend, buckets, layout, blocks.of);
  between_->barrier();  // every control block is made
}

void DirectTransport::adopt(Backend& backend, std::vector<Bucket>& buckets, const SharedLayout& layout,
                            const std::vector<std::shared_ptr<SharedBlock>>& blocks) {
  blocks_ = blocks;
  sides_.assign(buckets.size(), {});
  for (std::size_t k = 0; k < local_.size(); ++k) {
    const bool own = local_[k] == rank();
    if (own) control_ = ControlBlock::make(blocks[k]->data(), buckets.size());
    controls_[local_[k]] = own ? control_ : reinterpret_cast<ControlBlock*>(blocks[k]->data());
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::array<Tensor, 2>& buffers = own ? sides_[b].own : sides_[b].others[local_[k]];
      buffers = detail::buffers_in(blocks[k], layout.offsets[b], backend, buckets[b].parameters);
    }
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) detail::move_into(sides_[b].own, backend, buckets[b]);
}

std::size_t DirectTransport::buffers_for(const Exchange& exchange) const {
  if (sides_.empty()) return exchange.received();
  if (exchange.kind != Exchange::Kind::kNeighbours) return direct_sum(exchange) ? 0 : exchange.received();
  return static_cast<std::size_t>(
      std::count_if(exchange.receive_from.begin(), exchange.receive_from.end(), [&](int r) { return !is_local(r); }));
}

Ticket DirectTransport::start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
                                  std::vector<Tensor>& received, const ExchangeLabel& label) {
  if (sides_.empty()) return passed_on(between_->start_mix(exchange, bucket, buffers, received, label));
  BucketSide& side = side_of(label.bucket);
  const int active = side.active(bucket);
  const auto at = static_cast<std::size_t>(active);
  require(bucket.parameters.raw() == side.own[at].raw(), "transport", "bucket {} is not the one that was shared", label.bucket);
  require(buffers.size() >= buffers_for(exchange), "transport", "{} buffers for an exchange that needs {}", buffers.size(),
          buffers_for(exchange));
  received.clear();

  Operation operation{exchange, label, ++side.count, {}, 0, false};
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
  } else if (direct_sum(exchange)) {
    for (const int member : exchange.group) {
      received.push_back(member == rank() ? bucket.parameters : side.others.at(member)[at]);
      if (member != rank()) readers.push_back(member);
    }
    operation.read = readers;
  } else if (exchange.kind != Exchange::Kind::kNone) {
    received.push_back(buffers[0]);
    operation.between = between_->start_exchange(exchange, bucket.parameters, received, label);
    operation.has_between = true;
  }

  BucketSide::Contents& contents = side.contents[at];
  contents.count = side.count;
  detail::add_readers(readers, contents.readers);
  control_->pulse.beat(Doing::kPublished, label);
  detail::advance(counts_of(rank(), label.bucket).published, side.count);
  if (operation.read.empty() && !operation.has_between) return 0;
  const Ticket ticket = ++last_ * 2 - 1;
  operations_.emplace(ticket, std::move(operation));
  return ticket;
}

bool DirectTransport::done(Ticket ticket) {
  if (!is_own(ticket)) return ticket == 0 || between_->done(ticket / 2);
  const auto it = operations_.find(ticket);
  require(it != operations_.end(), "transport", "ticket {} is not under way", ticket);
  const Operation& operation = it->second;
  if (operation.has_between && !between_->done(operation.between)) return false;
  return std::all_of(operation.read.begin(), operation.read.end(),
                     [&](int peer) { return detail::reached(counts_of(peer, operation.label.bucket).published, operation.count); });
}

void DirectTransport::wait(Ticket ticket) {
  if (ticket == 0) return;
  if (!is_own(ticket)) return between_->wait(ticket / 2);
  const auto it = operations_.find(ticket);
  require(it != operations_.end(), "transport", "ticket {} is not under way", ticket);
  const Operation& operation = it->second;
  await(operation.read, &BucketCounts::published, operation.count, Doing::kWaitsForNeighbour, operation.label,
        [&] { return describe(operation.exchange, operation.label); });
  if (operation.has_between) between_->wait(operation.between);
  operations_.erase(it);
}

void DirectTransport::release(const ExchangeLabel& label) {
  if (sides_.empty()) return between_->release(label);
  control_->pulse.beat(Doing::kMixed, label);
  detail::advance(counts_of(rank(), label.bucket).released, side_of(label.bucket).count);
}

void DirectTransport::wait_until_writable(const ExchangeLabel& label) {
  if (sides_.empty()) return between_->wait_until_writable(label);
  BucketSide& side = side_of(label.bucket);
  if (side.count == 0) return;
  // The parameters are what the last start_mix() published; the other buffer is what will be written.
  BucketSide::Contents& contents = side.contents[side.contents[0].count == side.count ? 1 : 0];
  await(contents.readers, &BucketCounts::released, contents.count, Doing::kWaitsForReaders, label,
        [&] { return fmt::format("the readers of step {}, bucket {}", label.step - 1, label.bucket); });
  contents.readers.clear();
}

template <class What>
void DirectTransport::await(const std::vector<int>& ranks, std::atomic<std::uint32_t> BucketCounts::*member, std::uint32_t target,
                            Doing doing, const ExchangeLabel& label, const What& what) {
  const auto count_of = [&](int r) -> const std::atomic<std::uint32_t>& { return counts_of(r, label.bucket).*member; };
  Clock::time_point begin{};
  auto spin = settings_.spin ? std::chrono::nanoseconds(kSpin) : std::chrono::nanoseconds(0);
  for (const int r : ranks) {
    if (detail::reached(count_of(r), target)) continue;
    if (begin == Clock::time_point{}) {
      begin = Clock::now();
      control_->pulse.beat(doing, label);
    }
    const auto deadline = begin + seconds(settings_.timeout_seconds);
    const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    double& late_after = late_after_.try_emplace(r, std::min(kLateSeconds, settings_.timeout_seconds / 3)).first->second;
    bool late = false;
    while (!detail::wait_for(count_of(r), target, spin, std::min(deadline, Clock::now() + kSlice))) {
      spin = std::chrono::nanoseconds(0);
      if (settings_.check) settings_.check();
      if (Clock::now() >= deadline) {
        std::vector<AwaitedRank> known;
        for (const int other : ranks) {
          const detail::Pulse& pulse = control_of(other).pulse;
          known.push_back({other, pulse.seconds_ago(), pulse.text(), !detail::reached(count_of(other), target)});
        }
        fail_wait(rank(), what(), settings_.timeout_seconds, std::move(known));
      }
      if (!late && waited() >= late_after) {
        late = true;
        late_after *= 2;
        const detail::Pulse& pulse = control_of(r).pulse;
        log::warning("rank {} is late: waited {:.1f} s for {}; {:.1f} s ago it {}", r, waited(), what(), pulse.seconds_ago(), pulse.text());
      }
    }
    if (late) log::warning("rank {} came after {:.1f} s", r, waited());
  }
}

}  // namespace

std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between, std::unique_ptr<MemorySharing> sharing,
                                                 const DirectSettings& settings) {
  return std::make_unique<DirectTransport>(std::move(between), std::move(sharing), settings);
}

std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between, const DirectSettings& settings) {
  return make_direct_transport(std::move(between), make_process_sharing(settings.timeout_seconds), settings);
}

}  // namespace starling
