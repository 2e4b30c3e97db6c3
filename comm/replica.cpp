#include "comm/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "comm/agreement.h"
#include "comm/shared/shared_buckets.h"
#include "comm/transports/strided.h"
#include "core/error.h"
#include "core/operations/pointwise.h"

namespace starling {

using detail::ControlBlock;
using Doing = detail::Pulse::Doing;

Replica::Replica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
                 double timeout_seconds)
    : transport_(transport),
      size_(size),
      place_(transport.rank() % size),
      index_(transport.rank() / size),
      sharing_(std::move(sharing)),
      await_(timeout_seconds, false, {}) {
  require(size > 1 && transport.size() % size == 0, "replica", "{} ranks in replicas of {}",
          transport.size(), size);
  for (int place = 0; place < size; ++place) ranks_.push_back(index_ * size + place);
  others_ = ranks_;
  std::erase(others_, transport.rank());
  const std::vector<std::string> hosts = transport.world().all_gather(sharing_->host());
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
  between_ = make_strided_transport(transport, size);
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
  await_(controls_, transport_.rank(), others_, index, &detail::BucketCounts::published, barriers_,
         Doing::kWaitsForNeighbour, label,
         [&] { return fmt::format("the ranks of a replica after step {}", label.step); });
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

Tensor whole_in(Replica* replica, const Bucket& bucket, const Tensor& kept) {
  return replica ? replica->whole(bucket, kept) : kept;
}

void fill_in(Replica* replica, const Bucket& bucket, const Tensor& kept, bool share,
             const std::function<void(const Tensor& whole)>& fill) {
  if (!replica || replica->shares_memory()) return fill(kept);
  const Tensor whole(kept.backend(), kept.shape(), kept.dtype());
  kept.backend().fill(whole, 0.0);  // the padding
  if (!share || replica->place() == 0) fill(whole);
  replica->take(bucket, whole, kept, share);
}

namespace {

/// The part of a tensor that has memory.
struct PartBlock {
  Tensor part;
  std::byte* begin;  ///< where the whole would begin
  std::byte* data() const { return begin; }
};
using PartStorage = detail::BlockStorage<PartBlock>;

/// Gradients and parameters are what the compute stream reads and writes: it waits for exchanges,
/// whatever stream is current.
class ExchangingReplica final : public Replica {
 public:
  using Replica::sum;
  ExchangingReplica(Transport& transport, int size, std::unique_ptr<MemorySharing> sharing,
                    double timeout_seconds)
      : Replica(transport, size, std::move(sharing), timeout_seconds) {}
  bool shares_memory() const override { return false; }

  Tensor allocate(Backend& backend, const Shape& shape, DType dtype, ElementRange used) override {
    Tensor part(backend, Shape{used.elements}, dtype);
    backend.fill(part, 0.0);
    if (used.elements == shape.elements()) return {part.storage(), 0, shape, dtype};
    const std::size_t before = static_cast<std::size_t>(used.first) * size_of(dtype);
    auto* const begin =
        reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(part.raw()) - before);
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    return {std::make_shared<PartStorage>(
                backend, std::make_shared<PartBlock>(PartBlock{std::move(part), begin}), 0, bytes),
            0, shape, dtype};
  }

  void open(std::vector<Bucket>& buckets) override {
    Replica::open(buckets);
    open_control(buckets.size(), 0);
    tickets_.resize(buckets.size());
    // They stay, since a transport may register what it exchanges.
    for (const Bucket& bucket : buckets)
      means_.emplace_back(bucket.parameters.backend(), Shape{bucket.own->elements},
                          bucket.parameters.dtype());
    transport_.world().barrier();  // the counts of all are made
  }
  Tensor gradients(Backend& backend, const Shape& shape, DType dtype) override {
    return {backend, shape, dtype};
  }

  void publish(int bucket, const ExchangeLabel& label) override {
    const auto b = static_cast<std::size_t>(bucket);
    const Bucket& of = (*buckets_)[b];
    control_->pulse.beat(Doing::kPublished, label);
    tickets_[b] =
        transport_.start_exchange(exchange_of(Exchange::Kind::kScatterSum, of.layout->parts),
                                  of.gradients, {means_[b]}, label);
  }
  /// Exchanges start in the same order on all ranks, so that no rank may look what has arrived.
  bool published(int bucket, const ExchangeLabel&, bool wait) override {
    if (!wait) return false;
    const StreamScope scope(backend(), StreamKind::kCompute);
    transport_.wait(tickets_[static_cast<std::size_t>(bucket)]);
    return true;
  }
  Tensor take_mean(int bucket, const ExchangeLabel&) override {
    const Tensor& mean = means_[static_cast<std::size_t>(bucket)];
    mean.backend().weighted_sum({.in = {mean}, .weight = {1.0 / size_}, .terms = 1, .out = mean});
    return mean;
  }
  bool taken(int, const ExchangeLabel&, bool) override { return true; }

  /// Buckets in the order of the next forward pass.
  void meet(const ExchangeLabel& label) override {
    if (buckets_->empty()) return;
    const StreamScope scope(backend(), StreamKind::kCompute);
    std::vector<Ticket> tickets;
    for (std::size_t b = buckets_->size(); b-- > 0;)
      tickets.push_back(start_gather(
          (*buckets_)[b].layout->parts, (*buckets_)[b].own_part((*buckets_)[b].parameters),
          (*buckets_)[b].parameters, {label.step, static_cast<int>(b), label.round}));
    for (std::size_t k = 0; k < tickets.size(); ++k) {
      transport_.wait(tickets[k]);
      const Bucket& bucket = (*buckets_)[buckets_->size() - 1 - k];
      if (bucket.low) bucket.low.backend().cast({.x = bucket.parameters, .y = bucket.low});
    }
  }

  void sum(const Tensor& numbers) override {
    const Tensor sum(numbers.backend(), numbers.shape(), numbers.dtype());
    Exchange exchange = exchange_of(Exchange::Kind::kGroupSum, {});
    exchange.weights = {1.0};
    transport_.wait(transport_.start_exchange(exchange, numbers, {sum}, {-1, 0, 0}));
    numbers.backend().copy(sum, numbers);
  }

  Tensor whole(const Bucket& bucket, const Tensor& kept) override {
    if (!is_part(kept)) return kept;
    const std::vector<std::int64_t> parts = parts_of(bucket, kept);
    Tensor whole(kept.backend(), kept.shape(), kept.dtype());
    transport_.wait(start_gather(parts, own_of(parts, kept), whole, {-1, 0, 0}));
    return whole;
  }

  void take(const Bucket& bucket, const Tensor& whole, const Tensor& kept, bool share) override {
    if (share) {
      Exchange exchange;
      exchange.kind = Exchange::Kind::kNeighbours;
      if (place_ == 0) exchange.send_to = others_;
      if (place_ > 0) exchange.receive_from = {ranks_[0]}, exchange.weights = {1.0};
      transport_.wait(transport_.start_exchange(
          exchange, whole, place_ == 0 ? std::vector<Tensor>() : std::vector{whole}, {-1, 0, 0}));
    }
    if (!is_part(kept)) return kept.backend().copy(whole, kept);
    const std::vector<std::int64_t> parts = parts_of(bucket, kept);
    kept.backend().copy(own_of(parts, whole), own_of(parts, kept));
  }

 private:
  Backend& backend() const { return buckets_->front().parameters.backend(); }
  static bool is_part(const Tensor& tensor) {
    return dynamic_cast<const PartStorage*>(tensor.storage().get()) != nullptr;
  }
  static std::vector<std::int64_t> parts_of(const Bucket& bucket, const Tensor& kept) {
    std::vector<std::int64_t> parts = bucket.layout->parts;
    if (kept.elements() != bucket.layout->elements) {
      for (std::int64_t& part : parts) part = state_place(bucket, part);
    }
    return parts;
  }
  Tensor own_of(const std::vector<std::int64_t>& parts, const Tensor& whole) const {
    const auto own = static_cast<std::size_t>(place_);
    return whole.slice(parts[own], Shape{parts[own + 1] - parts[own]});
  }
  Ticket start_gather(const std::vector<std::int64_t>& parts, const Tensor& own,
                      const Tensor& whole, const ExchangeLabel& label) {
    return transport_.start_exchange(exchange_of(Exchange::Kind::kGather, parts), own, {whole},
                                     label);
  }

  std::vector<Ticket> tickets_;  ///< by bucket: of its gradients
  std::vector<Tensor> means_;    ///< by bucket: this rank's part
};

}  // namespace

std::unique_ptr<Replica> make_exchanging_replica(Transport& transport, int size,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 double timeout_seconds) {
  return std::make_unique<ExchangingReplica>(transport, size, std::move(sharing), timeout_seconds);
}

}  // namespace starling
