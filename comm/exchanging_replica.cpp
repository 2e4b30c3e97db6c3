#include <algorithm>
#include <cstdint>
#include <utility>

#include "comm/replica.h"
#include "comm/shared/shared_buckets.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

using Doing = detail::Pulse::Doing;

/// The part of a tensor that has memory.
struct PartBlock {
  Tensor part;
  std::byte* begin;  ///< where the whole would begin
  std::byte* data() const { return begin; }
};
using PartStorage = detail::BlockStorage<PartBlock>;

/// The vectors of a bucket, divided as the bucket is.
struct Vectors {
  std::vector<std::int64_t> parts;  ///< where they begin in Bucket::vectors, and the end
  std::vector<VectorRange> own;     ///< what is in this rank's part

  Vectors(const Bucket& bucket, int place) {
    const std::vector<VectorRange> ranges = vectors_of(*bucket.layout);
    const auto before = [](const VectorRange& range, std::int64_t end) {
      return std::clamp<std::int64_t>(end - range.first, 0, range.elements);
    };
    for (const std::int64_t end : bucket.layout->parts) {
      std::int64_t& count = parts.emplace_back(0);
      for (const VectorRange& range : ranges) count += before(range, end);
    }
    const auto own_place = static_cast<std::size_t>(place);
    for (const VectorRange& range : ranges) {
      const std::int64_t from = before(range, bucket.layout->parts[own_place]),
                         to = before(range, bucket.layout->parts[own_place + 1]);
      if (from < to) own.push_back({range.first + from, to - from, range.place + from});
    }
  }
};

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
    gathers_.resize(buckets.size());
    for (const Bucket& bucket : buckets) {
      // They stay, since a transport may register what it exchanges.
      means_.emplace_back(bucket.parameters.backend(), Shape{bucket.own->elements},
                          bucket.parameters.dtype());
      vectors_.emplace_back(bucket, place_);
    }
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
  Tensor take_mean(int bucket, const ExchangeLabel&, bool) override {
    const Tensor& mean = means_[static_cast<std::size_t>(bucket)];
    mean.backend().weighted_sum({.in = {mean}, .weight = {1.0 / size_}, .terms = 1, .out = mean});
    return mean;
  }
  bool taken(int, const ExchangeLabel&, bool) override { return true; }

  void share(int bucket, const ExchangeLabel& label) override {
    const Bucket& of = (*buckets_)[static_cast<std::size_t>(bucket)];
    // InReplica has awaited the gather before
    const Event read = mark(StreamKind::kCompute);
    const StreamScope scope(backend(), StreamKind::kUpdate);
    backend().wait(read);
    gathers_[static_cast<std::size_t>(bucket)] =
        start_gathers(of, of.parameters, of.low, of.vectors, label);
  }
  void await(int bucket) override {
    const StreamScope scope(backend(), StreamKind::kCompute);
    for (const Ticket ticket : std::exchange(gathers_[static_cast<std::size_t>(bucket)], {}))
      transport_.wait(ticket);
  }
  void meet(const ExchangeLabel&) override {}

  void show(const Bucket& bucket, const Tensor& parameters, const Tensor& low,
            const Tensor& vectors) override {
    backend().cast({.x = bucket.own_part(parameters), .y = bucket.own_part(low)});
    for (const Ticket ticket : start_gathers(bucket, parameters, low, vectors, {-1, 0, 0}))
      transport_.wait(ticket);
  }

  void sum(const Tensor& numbers) override {
    const Tensor sum(numbers.backend(), numbers.shape(), numbers.dtype());
    Exchange exchange = exchange_of(Exchange::Kind::kGroupSum, {});
    exchange.weights = {1.0};
    transport_.wait(transport_.start_exchange(exchange, numbers, {sum}, {-1, 0, 0}));
    numbers.backend().copy(sum, numbers);
  }

  Tensor whole(const Bucket& bucket, const Tensor& local) override {
    if (!is_part(local)) return local;
    const std::vector<std::int64_t> parts = parts_of(bucket, local);
    Tensor whole(local.backend(), local.shape(), local.dtype());
    transport_.wait(start_gather(parts, own_of(parts, local), whole, {-1, 0, 0}));
    return whole;
  }

  void take(const Bucket& bucket, const Tensor& whole, const Tensor& local, bool share) override {
    if (share) {
      Exchange exchange;
      exchange.kind = Exchange::Kind::kNeighbours;
      if (place_ == 0) exchange.send_to = others_;
      if (place_ > 0) exchange.receive_from = {ranks_[0]}, exchange.weights = {1.0};
      transport_.wait(transport_.start_exchange(
          exchange, whole, place_ == 0 ? std::vector<Tensor>() : std::vector{whole}, {-1, 0, 0}));
    }
    if (!is_part(local)) return local.backend().copy(whole, local);
    const std::vector<std::int64_t> parts = parts_of(bucket, local);
    local.backend().copy(own_of(parts, whole), own_of(parts, local));
  }

 private:
  Event mark(StreamKind stream) const {
    const StreamScope scope(backend(), stream);
    return backend().record();
  }
  Backend& backend() const { return buckets_->front().parameters.backend(); }
  static bool is_part(const Tensor& tensor) {
    return dynamic_cast<const PartStorage*>(tensor.storage().get()) != nullptr;
  }
  static std::vector<std::int64_t> parts_of(const Bucket& bucket, const Tensor& local) {
    std::vector<std::int64_t> parts = bucket.layout->parts;
    if (local.elements() != bucket.layout->elements) {
      for (std::int64_t& part : parts) part = state_place(bucket, part);
    }
    return parts;
  }
  Tensor own_of(const std::vector<std::int64_t>& parts, const Tensor& whole) const {
    const auto own = static_cast<std::size_t>(place_);
    return whole.slice(parts[own], Shape{parts[own + 1] - parts[own]});
  }
  /// Starts the all-gathers of what layers compute with.
  std::vector<Ticket> start_gathers(const Bucket& bucket, const Tensor& parameters,
                                    const Tensor& low, const Tensor& vectors,
                                    const ExchangeLabel& label) {
    const std::vector<std::int64_t>& parts = bucket.layout->parts;
    const Tensor& whole = bucket.divided ? low : parameters;
    std::vector<Ticket> tickets{start_gather(parts, bucket.own_part(whole), whole, label)};
    if (!vectors) return tickets;
    const Vectors& of = vectors_[static_cast<std::size_t>(&bucket - buckets_->data())];
    for (const VectorRange& range : of.own) {
      const Shape shape{range.elements};
      backend().copy(parameters.slice(range.first, shape), vectors.slice(range.place, shape));
    }
    tickets.push_back(start_gather(of.parts, own_of(of.parts, vectors), vectors, label));
    return tickets;
  }
  Ticket start_gather(const std::vector<std::int64_t>& parts, const Tensor& own,
                      const Tensor& whole, const ExchangeLabel& label) {
    return transport_.start_exchange(exchange_of(Exchange::Kind::kGather, parts), own, {whole},
                                     label);
  }

  std::vector<Ticket> tickets_;               ///< by bucket: of its gradients
  std::vector<std::vector<Ticket>> gathers_;  ///< by bucket: of its parameters, if on their way
  std::vector<Tensor> means_;                 ///< by bucket: this rank's part
  std::vector<Vectors> vectors_;              ///< by bucket
};

}  // namespace

std::unique_ptr<Replica> make_exchanging_replica(Transport& transport, int size,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 double timeout_seconds) {
  return std::make_unique<ExchangingReplica>(transport, size, std::move(sharing), timeout_seconds);
}

}  // namespace starling
