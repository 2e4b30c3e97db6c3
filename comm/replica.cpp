#include "comm/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "comm/agreement.h"
#include "comm/transports/strided.h"
#include "core/error.h"
#include "core/running_clock.h"

namespace starling {

using detail::ControlBlock;
using Doing = detail::Pulse::Doing;

namespace {
constexpr double kMostSecondsBehind = 1.0;  // a rank, behind one that has found another one lost
}

Replica::Replica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
                 double timeout_seconds)
    : transport_(transport),
      size_(size),
      place_(transport.rank() % size),
      index_(transport.rank() / size),
      sharing_(std::move(sharing)),
      await_(timeout_seconds, false, [this] { transport_.check(); }) {
  require(size > 1 && transport.size() % size == 0, "replica", "{} ranks in replicas of {}",
          transport.size(), size);
  for (int place = 0; place < size; ++place) ranks_.push_back(index_ * size + place);
  others_ = ranks_;
  std::erase(others_, transport.rank());
  check_replica_hosts(transport.world(), size, sharing_->host());
  between_ = make_strided_transport(transport, size);
}

void check_replica_hosts(World& world, int size, const std::string& host) {
  const std::vector<std::string> hosts = world.all_gather(host);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::size_t first =
        rank / static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    if (hosts[rank] == hosts[first]) continue;
    fail_on_all_ranks(ExitCode::kUsage, "config", {.key = "sync.replica"},
                      "is {}, but ranks {} and {} of one replica are on different hosts ({} and "
                      "{}); a replica's ranks share a host's memory: start ranks host by host, "
                      "with a multiple of {} on each",
                      size, first, rank, hosts[first].substr(0, hosts[first].find(' ')),
                      hosts[rank].substr(0, hosts[rank].find(' ')), size);
  }
}

Replica::~Replica() {
  if (control_) control_->pulse.beat(Doing::kEnded);
}

void Replica::open_control(std::size_t buckets, std::size_t more) {
  constexpr std::size_t kPage = 4096;
  const auto rounded = [](std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; };
  numbers_at_ = rounded(ControlBlock::bytes(buckets + 1), detail::kCacheLine);
  more_at_ = rounded(numbers_at_ + 2 * (buckets + 1) * sizeof(double), kPage);
  SharedBlocks blocks =
      sharing_->share(transport_.world(), ranks_, more_at_ + more, MemorySharing::Kind::kSparse);
  if (!blocks.refusal.empty())
    fail_on_all_ranks(ExitCode::kMemory, "replica", {.key = "sync.replica"},
                      "the gradients that the {} ranks of a replica add up: {}", size_,
                      blocks.refusal);
  blocks_ = std::move(blocks.of);
  const auto own = static_cast<std::size_t>(place_);
  control_ = ControlBlock::make(blocks_[own]->data(), buckets + 1);
  for (std::size_t place = 0; place < blocks_.size(); ++place)
    controls_[ranks_[place]] =
        place == own ? control_ : reinterpret_cast<ControlBlock*>(blocks_[place]->data());
}

void Replica::open(std::vector<Bucket>& buckets) {
  buckets_ = &buckets;
  for (const Bucket& bucket : buckets)
    require(bucket.own && bucket.layout->parts.size() == static_cast<std::size_t>(size_) + 1,
            "replica", "a bucket is not divided among {} ranks", size_);
}

Exchange Replica::exchange_of(Exchange::Kind kind, std::vector<std::int64_t> parts) const {
  Exchange exchange;
  exchange.kind = kind;
  exchange.group = ranks_;
  exchange.parts = std::move(parts);
  return exchange;
}

void Replica::barrier(const ExchangeLabel& label) {
  const std::size_t index = buckets_->size();
  control_->pulse.beat(Doing::kPublished, label);
  detail::advance(control_->counts(index)->published, ++barriers_);
  try {
    await_(controls_, transport_.rank(), others_, index, &detail::BucketCounts::published,
           barriers_, Doing::kWaitsForNeighbour, label,
           [&] { return fmt::format("the ranks of a replica after step {}", label.step); });
  } catch (const Error&) {
    // The last one to arrive finds all counts raised and continues, so this rank has to, as well.
    const auto failed = RunningClock::now();
    for (const int rank : others_) {
      ControlBlock& other = *controls_.at(rank);
      while (true) {
        const bool ended = other.pulse.doing.load(std::memory_order_acquire) == Doing::kEnded;
        if (detail::reached(other.counts(index)->published, barriers_)) break;
        if (ended || RunningClock::seconds_since(failed) > kMostSecondsBehind) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
}

void Replica::sum(double* values, std::size_t count, const ExchangeLabel& label) {
  const std::size_t most = buckets_->size() + 1;
  require(count <= most, "replica", "{} numbers, at most {}", count, most);
  // Two places in turn: who writes the next numbers has seen all arrive, not all read.
  const std::size_t at = numbers_at_ + (barriers_ % 2) * most * sizeof(double);
  const auto of_rank = [&](std::size_t place) {
    return reinterpret_cast<double*>(blocks_[place]->data() + at);
  };
  std::copy_n(values, count, of_rank(static_cast<std::size_t>(place_)));
  barrier(label);
  std::copy_n(of_rank(0), count, values);
  for (std::size_t place = 1; place < blocks_.size(); ++place) {
    for (std::size_t i = 0; i < count; ++i) values[i] += of_rank(place)[i];
  }
}

Tensor allocate_in(Replica* replica, Backend& backend, const Shape& shape, DType dtype,
                   ElementRange used) {
  if (replica) return replica->allocate(backend, shape, dtype, used);
  Tensor tensor(backend, shape, dtype);
  backend.fill(tensor, 0.0);
  return tensor;
}

Tensor whole_in(Replica* replica, const Bucket& bucket, const Tensor& local) {
  return replica ? replica->whole(bucket, local) : local;
}

void fill_in(Replica* replica, const Bucket& bucket, const Tensor& local, bool share,
             const std::function<void(const Tensor& whole)>& fill) {
  if (!replica || replica->shares_memory()) return fill(local);
  const Tensor whole(local.backend(), local.shape(), local.dtype());
  local.backend().fill(whole, 0.0);  // the padding
  if (!share || replica->place() == 0) fill(whole);
  replica->take(bucket, whole, local, share);
}

}  // namespace starling
