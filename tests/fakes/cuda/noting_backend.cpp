#include "tests/fakes/cuda/noting_backend.h"

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/operations/accesses.h"
#include "kernels/optimizer.h"
#include "tests/fakes/cuda/recorder.h"

namespace starling::cuda::shim {
namespace {

/// A block of the pool that says when it comes and goes.
class NotingStorage final : public Storage {
 public:
  NotingStorage(Backend& backend, std::shared_ptr<Storage> block, StreamHandle stream)
      : Storage(backend, block->data(), block->bytes()), block_(std::move(block)), stream_(stream) {
    note({.kind = CallKind::kTake, .stream = stream_, .to = data(), .bytes = bytes()});
  }
  ~NotingStorage() override {
    // Before the pool can give it to another thread.
    note({.kind = CallKind::kGiveBack, .stream = stream_, .to = data(), .bytes = bytes()});
  }

 private:
  std::shared_ptr<Storage> block_;
  StreamHandle stream_;
};

class NotingPeerMemory final : public PeerMemory {
 public:
  NotingPeerMemory(PeerMemory& inner, CudaBackend& backend) : inner_(inner), backend_(backend) {}
  std::string device() const override { return inner_.device(); }
  std::string why_not_exported() const override { return inner_.why_not_exported(); }
  std::string why_not_reached(const std::string& device) const override {
    return inner_.why_not_reached(device);
  }
  std::shared_ptr<PeerBlock> create(std::size_t bytes, int& descriptor) override {
    return inner_.create(bytes, descriptor);
  }
  std::shared_ptr<PeerBlock> map(int descriptor, std::size_t bytes) override {
    return inner_.map(descriptor, bytes);
  }
  std::optional<Loss> lost() const override { return inner_.lost(); }
  void give_up() override { inner_.give_up(); }
  void restart() override { inner_.restart(); }
  void signal(std::uint32_t* counter, std::uint32_t value) override {
    note({.kind = CallKind::kSignal,
          .stream = backend_.handle(),
          .to = counter,
          .recording = value});
    inner_.signal(counter, value);
  }
  void await(std::span<const Awaited> counters, std::uint32_t value, const Purpose& purpose,
             double limit_seconds) override {
    inner_.await(counters, value, purpose, limit_seconds);
    for (const Awaited& awaited : counters) {
      note({.kind = CallKind::kAwait,
            .stream = backend_.handle(),
            .from = awaited.counter,
            .recording = value,
            .peer = awaited.rank});
    }
  }

 private:
  PeerMemory& inner_;
  CudaBackend& backend_;
};

}  // namespace

PeerMemory* NotingBackend::peer_memory() {
  if (!peers_) peers_ = std::make_unique<NotingPeerMemory>(*cuda_.peer_memory(), cuda_);
  return peers_.get();
}

std::shared_ptr<Storage> NotingBackend::allocate(std::size_t bytes) {
  const StreamHandle stream = cuda_.handle();
  return std::make_shared<NotingStorage>(*this, cuda_.allocate(bytes), stream);
}

void NotingBackend::fill(const Tensor& x, double value) {
  // Zeros are set by the runtime, which notes them.
  if (value != 0.0 || std::signbit(value)) before("fill", Accesses().write({x}));
  ForwardingBackend::fill(x, value);
}

void NotingBackend::before(std::string_view name, const Accesses& accesses) {
  const StreamHandle stream = cuda_.handle();
  for (const Tensor& x : accesses.reads) {
    note({.kind = CallKind::kRead,
          .stream = stream,
          .label = std::string(name),
          .from = x.raw(),
          .bytes = x.bytes()});
  }
  for (const Tensor& x : accesses.writes) {
    note({.kind = CallKind::kWrite,
          .stream = stream,
          .label = std::string(name),
          .to = x.raw(),
          .bytes = x.bytes()});
  }
}

}  // namespace starling::cuda::shim
