#include "kernels/cuda/runtime/peer.h"

#include <chrono>
#include <new>

#include "core/running_clock.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/handshake.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {
namespace {

class MappedPeerBlock final : public PeerBlock {
 public:
  MappedPeerBlock(int device, void* memory, std::size_t bytes)
      : PeerBlock(static_cast<std::byte*>(memory), bytes), device_(device) {}
  ~MappedPeerBlock() override { shareable_free(device_, data(), bytes()); }

 private:
  int device_;
};

}  // namespace

PeerMemory* CudaBackend::peer_memory() {
  if (!peer_) peer_ = std::make_unique<CudaPeerMemory>(*this);
  return peer_.get();
}

CudaPeerMemory::CudaPeerMemory(CudaBackend& backend)
    : backend_(backend),
      pinned_(backend.allocate_host(sizeof(PeerWords))),
      words_(new (pinned_.get()) PeerWords) {
  load_kernels();
}
CudaPeerMemory::~CudaPeerMemory() {
  stop_ = true;
  if (ticks_.joinable()) ticks_.join();
}

void CudaPeerMemory::tick() {
  if (ticks_.joinable()) return;
  ticks_ = std::thread([this] {
    while (!stop_) {
      const auto ran = RunningClock::now().time_since_epoch() / std::chrono::milliseconds(1);
      store_release_system(&words_->clock_ms, static_cast<std::uint32_t>(ran));
      std::this_thread::sleep_for(std::chrono::milliseconds(PeerWords::kTick));
    }
  });
}

std::string CudaPeerMemory::device() const { return device_uuid(backend_.info().number); }
std::string CudaPeerMemory::why_not_exported() const {
  return why_not_shareable(backend_.info().number);
}
std::string CudaPeerMemory::why_not_reached(const std::string& device) const {
  return why_not_reachable(backend_.info().number, device);
}

std::shared_ptr<PeerBlock> CudaPeerMemory::create(std::size_t bytes, int& descriptor) {
  const int device = backend_.info().number;
  auto block = std::make_shared<MappedPeerBlock>(
      device, shareable_allocate(device, bytes, descriptor), bytes);
  set_async(block->data(), 0, bytes, backend_.handle());
  host_wait_stream(backend_.handle());  // before other processes read it
  return block;
}

std::shared_ptr<PeerBlock> CudaPeerMemory::map(int descriptor, std::size_t bytes) {
  const int device = backend_.info().number;
  return std::make_shared<MappedPeerBlock>(device, shareable_map(device, descriptor, bytes), bytes);
}

std::optional<PeerMemory::Loss> CudaPeerMemory::lost() const {
  if (load_acquire_system(&words_->timed_out) == 0) return std::nullopt;
  return Loss{words_->rank, {words_->bucket, words_->kind}, words_->wanted, words_->seen};
}

void CudaPeerMemory::give_up() { store_release_system(&words_->stop_waiting, 1); }

void CudaPeerMemory::restart() {
  store_release_system(&words_->timed_out, 0);
  store_release_system(&words_->stop_waiting, 0);
}

}  // namespace starling::cuda
