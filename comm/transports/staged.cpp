#include "comm/transports/staged.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/device_trace.h"
#include "core/error.h"
#include "core/trace.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// A device's pinned memory, as storage in host memory.
class PinnedStorage final : public Storage {
 public:
  PinnedStorage(Backend& host, std::shared_ptr<std::byte> memory, std::size_t bytes)
      : Storage(host, memory.get(), bytes), memory_(std::move(memory)) {}

 private:
  std::shared_ptr<std::byte> memory_;
};

/// Who writes a buffer first. The device's accesses are ordered by its stream; the host must wait
/// for the device's earlier ones.
enum class FirstWriter { kDevice, kHost };

struct PinnedBuffer {
  Backend* device = nullptr;
  FirstWriter writer = FirstWriter::kDevice;
  std::shared_ptr<Storage> storage;
  bool taken = false;
  Event used;  ///< for kHost: recorded after the device's last copy from it
};

/// A pool of pinned buffers. Buckets repeat, so exchanges soon find a buffer of the right size.
class PinnedBuffers {
 public:
  explicit PinnedBuffers(Backend& host) : host_(host) {}
  /// Waits for copies in flight.
  ~PinnedBuffers() {
    Backend* waited = nullptr;
    for (const auto& buffer : buffers_) {
      if (buffer->device == std::exchange(waited, buffer->device)) continue;
      try {
        buffer->device->synchronize();
      } catch (...) {  // errors of earlier work are reported by its own waits
      }
    }
  }
  PinnedBuffers(const PinnedBuffers&) = delete;
  PinnedBuffers& operator=(const PinnedBuffers&) = delete;

  /// The buffer belongs to the caller until the caller resets `taken`.
  PinnedBuffer& take(Backend& device, FirstWriter writer, std::size_t bytes) {
    for (const auto& buffer : buffers_) {
      if (buffer->taken || buffer->device != &device || buffer->writer != writer ||
          buffer->storage->bytes() != bytes)
        continue;
      // The device may still copy the previous contents
      if (writer == FirstWriter::kHost && !device.done(buffer->used)) continue;
      buffer->taken = true;
      return *buffer;
    }
    auto memory = device.allocate_host(bytes);
    buffers_.push_back(std::make_unique<PinnedBuffer>(
        PinnedBuffer{&device,
                     writer,
                     std::make_shared<PinnedStorage>(host_, std::move(memory), bytes),
                     true,
                     {}}));
    return *buffers_.back();
  }

 private:
  Backend& host_;
  std::vector<std::unique_ptr<PinnedBuffer>> buffers_;
};

/// One exchange of a device's tensors.
class Transfer final : public Flow {
 public:
  /// Issues the copies to the host, into `out`; none if nothing `is_sent`.
  Transfer(const Tensor& send, PinnedBuffer& out, const ExchangeLabel& label, bool is_sent)
      : Flow(send.bytes()),
        device_(send.backend()),
        send_(send),
        out_(out),
        name_(timeline_name(label)) {
    const Event computed = mark(StreamKind::kCompute), updated = mark(StreamKind::kUpdate);
    const StreamScope scope(device_, StreamKind::kCommunication);
    device_.wait(computed);
    device_.wait(updated);
    const TraceRange range("send", name_);
    const DeviceSpan span(TraceLane::kDeviceExchange, "send", name_);
    for (std::size_t at = 0; is_sent && at < send.bytes(); at += kStagedPieceBytes) {
      device_.copy_to_pinned(piece(send, at), out.storage->data() + at);
      copies_.push_back(device_.record());
    }
    if (!copies_.empty()) last_ = copies_.back();
  }

  /// The host's view of a pinned buffer, shaped as `like`.
  static Tensor view(const PinnedBuffer& buffer, const Tensor& like) {
    return {buffer.storage, 0, like.shape(), like.dtype()};
  }
  Tensor send() const { return view(out_, send_); }
  /// Copies to `target` what is received into `in`.
  void expect(const Tensor& target, PinnedBuffer& in) { arrivals_.push_back({target, &in}); }

  std::size_t ready() override {
    const std::lock_guard lock(mutex_);
    while (!closed_ && copied_ < copies_.size() && device_.done(copies_[copied_])) ++copied_;
    return std::min(bytes(), copied_ * kStagedPieceBytes);
  }
  void arrived(std::size_t buffer, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    arrivals_[buffer].received = std::max(arrivals_[buffer].received, bytes);
  }
  /// Copies received pieces to the device. Nothing on the device reads the targets any more then:
  /// the communication stream waited for such work before it copied to the host.
  void look() override {
    bool all = true;
    for (Arrival& arrival : arrivals_) {
      std::size_t received = 0;
      {
        const std::lock_guard lock(mutex_);
        received = arrival.received;
      }
      const std::size_t total = arrival.target.bytes();
      const StreamScope scope(device_, StreamKind::kCommunication);
      const auto next_is_there = [&] {
        return arrival.issued < total &&
               std::min(total, arrival.issued + kStagedPieceBytes) <= received;
      };
      if (next_is_there()) {
        const TraceRange range("receive", name_);
        const DeviceSpan span(TraceLane::kDeviceExchange, "receive", name_);
        while (next_is_there()) {
          const Tensor part = piece(arrival.target, arrival.issued);
          device_.copy_from_pinned(arrival.in->storage->data() + arrival.issued, part);
          arrival.issued += part.bytes();
        }
        issued_ = true;
      }
      all = all && arrival.issued == total;
    }
    if (!all || !issued_ || there_) return;
    const StreamScope scope(device_, StreamKind::kCommunication);
    last_ = device_.record();
    there_ = true;
    for (const Arrival& arrival : arrivals_) arrival.in->used = last_;
  }

  /// Completes the exchange: the current stream may use the result, and the buffers are free.
  void finish() {
    for (std::size_t k = 0; k < arrivals_.size(); ++k) arrived(k, arrivals_[k].target.bytes());
    look();
    device_.wait(last_);
    out_.taken = false;
    for (const Arrival& arrival : arrivals_) arrival.in->taken = false;
  }
  /// Abandons the exchange: releases its tensors without further calls to the device.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    send_ = {};
    for (Arrival& arrival : arrivals_) arrival.target = {};
  }

 private:
  struct Arrival {
    Tensor target;
    PinnedBuffer* in = nullptr;
    std::size_t received = 0;  ///< bytes received, guarded by mutex_
    std::size_t issued = 0;    ///< bytes whose copies to the device are issued
  };

  /// Records an event on a stream.
  Event mark(StreamKind stream) {
    const StreamScope scope(device_, stream);
    return device_.record();
  }
  static Tensor piece(const Tensor& tensor, std::size_t at) {
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype())),
               first = static_cast<std::int64_t>(at) / size;
    return tensor.slice(first, Shape{std::min(static_cast<std::int64_t>(kStagedPieceBytes) / size,
                                              tensor.elements() - first)});
  }

  Backend& device_;
  Tensor send_;
  PinnedBuffer& out_;
  const std::string name_;     ///< for the timeline
  std::vector<Event> copies_;  ///< recorded after the copy of each piece to the host
  std::vector<Arrival> arrivals_;
  bool issued_ = false, there_ = false;
  Event last_;  ///< recorded after the last copy to the device; before the first, after that to the
                ///< host

  std::mutex mutex_;
  std::size_t copied_ = 0;  ///< number of copies_ known to be complete
  bool closed_ = false;
};

class StagedTransport final : public Transport {
 public:
  explicit StagedTransport(std::unique_ptr<Transport> inner)
      : Transport(inner->world()),
        host_(open_backend(DeviceType::kCpu, 1)),
        buffers_(*host_),
        inner_(std::move(inner)) {}
  ~StagedTransport() override {
    inner_.reset();  // waits for exchanges in flight, unless an exception is being thrown
    for (const auto& [ticket, transfer] : pending_) transfer->close();
  }

  std::string name() const override { return inner_->name() + ", through host memory"; }
  void prepare(const std::vector<std::vector<int>>& groups) override { inner_->prepare(groups); }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    if (on_host(send))
      return inner_->start_exchange(exchange, send, receive, label, std::move(flow));
    refuse(flow);
    const bool is_sent = exchange.kind != Exchange::Kind::kNeighbours || !exchange.send_to.empty();
    const std::shared_ptr<Transfer> transfer = copy_out(send, label, is_sent);
    std::vector<Tensor> places;
    for (const Tensor& target : receive) {
      PinnedBuffer& in = buffers_.take(send.backend(), FirstWriter::kHost, target.bytes());
      transfer->expect(target, in);
      places.push_back(Transfer::view(in, target));
    }
    return keep(inner_->start_exchange(exchange, transfer->send(), places, label, transfer),
                transfer);
  }

  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    if (on_host(in)) return inner_->start_sum(in, out, label, std::move(flow));
    refuse(flow);
    PinnedBuffer* buffer = nullptr;
    const std::shared_ptr<Transfer> transfer = copy_out(in, label, true, &buffer);
    transfer->expect(out, *buffer);  // in place: the host sums where the device has written
    return keep(inner_->start_sum(transfer->send(), transfer->send(), label, transfer), transfer);
  }

  void check() override { inner_->check(); }
  void ask(int rank) override { inner_->ask(rank); }
  bool done(Ticket ticket) override {
    look();
    return inner_->done(ticket);
  }

  void wait(Ticket ticket) override {
    inner_->wait(ticket);
    const auto it = pending_.find(ticket);
    if (it == pending_.end()) return;
    it->second->finish();
    pending_.erase(it);
  }

 private:
  static void refuse(const std::shared_ptr<Flow>& flow) {
    require(!flow, "transport", "exchanges of device tensors already have a Flow");
  }

  /// Starts copying `send` to the host. First copies received data of other exchanges to the
  /// device, which after this copy would be delayed until the update that this copy waits for.
  std::shared_ptr<Transfer> copy_out(const Tensor& send, const ExchangeLabel& label, bool is_sent,
                                     PinnedBuffer** buffer = nullptr) {
    look();
    PinnedBuffer& out = buffers_.take(send.backend(), FirstWriter::kDevice, send.bytes());
    if (buffer) *buffer = &out;
    return std::make_shared<Transfer>(send, out, label, is_sent);
  }
  void look() {
    for (const auto& [ticket, transfer] : pending_) transfer->look();
  }
  Ticket keep(Ticket ticket, const std::shared_ptr<Transfer>& transfer) {
    pending_.emplace(ticket, transfer);
    return ticket;
  }

  std::unique_ptr<Backend> host_;  ///< outlives the transport, which may hold its tensors
  PinnedBuffers buffers_;
  std::unique_ptr<Transport> inner_;
  std::map<Ticket, std::shared_ptr<Transfer>> pending_;
};

}  // namespace

std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> inner) {
  return std::make_unique<StagedTransport>(std::move(inner));
}

}  // namespace starling
