#include "comm/shared/peer_blocks.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/other_ranks.h"
#include "comm/shared/descriptors.h"

namespace starling::detail {
namespace {

constexpr double kSwapSeconds = 30.0;

}  // namespace

HostBlocks<PeerBlock> share_peer_blocks(World& world, const std::vector<int>& ranks,
                                        PeerMemory* memory, std::size_t bytes) {
  return share_blocks<PeerBlock>(
      world, ranks, kSwapSeconds,
      [&](Descriptor& file) {
        int number = -1;
        std::shared_ptr<PeerBlock> block = memory->create(bytes, number);
        file = Descriptor(number);
        return block;
      },
      [&](std::size_t, const Descriptor& file) { return memory->map(file.number(), bytes); });
}

PeerBlocks::PeerBlocks(Backend& backend, Transport& transport, MemorySharing& sharing,
                       double timeout_seconds, std::vector<int> ranks)
    : backend_(backend),
      transport_(transport),
      sharing_(sharing),
      memory_(backend.peer_memory()),
      timeout_seconds_(timeout_seconds),
      exceptions_at_start_(std::uncaught_exceptions()),
      ranks_(std::move(ranks)) {}

PeerBlocks::~PeerBlocks() {
  if (pulse_) pulse_->beat(Pulse::Doing::kEnded);
  if (blocks_.empty()) return;
  // Other ranks may never arrive.
  if (std::uncaught_exceptions() > exceptions_at_start_) memory_->give_up();
  close();
}

void PeerBlocks::close() {
  try {
    backend_.synchronize();  // the device may be reading memory that is unmapped now
  } catch (...) {            // errors of earlier work are reported by its own waits
  }
  blocks_.clear();
  pulses_.clear();
  pulse_ = nullptr;
  pulse_blocks_.clear();
}

std::string PeerBlocks::open(std::size_t bytes) {
  World& world = transport_.world();
  SharedBlocks pulses = sharing_.share(world, ranks_, ControlBlock::bytes(0));
  if (!pulses.refusal.empty()) return pulses.refusal;
  HostBlocks<PeerBlock> blocks = share_peer_blocks(world, ranks_, memory_, bytes);
  if (!blocks.refusal.empty() || ranks_.size() == 1) return blocks.refusal;
  blocks_ = std::move(blocks.of);
  pulse_blocks_ = std::move(pulses.of);
  for (std::size_t k = 0; k < ranks_.size(); ++k) {
    const bool own = ranks_[k] == transport_.rank();
    std::byte* const host = pulse_blocks_[k]->data();
    if (own) pulse_ = &ControlBlock::make(host, 0)->pulse;
    pulses_[ranks_[k]] = own ? pulse_ : &reinterpret_cast<const ControlBlock*>(host)->pulse;
  }
  return {};
}

DeviceCounts& PeerBlocks::counts_of(int rank, int index) const {
  const auto place = std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  return reinterpret_cast<DeviceCounts*>(
      blocks_[static_cast<std::size_t>(place)]->data())[static_cast<std::size_t>(index)];
}

void PeerBlocks::signal(int index, std::uint32_t DeviceCounts::*member, std::uint32_t value) {
  memory_->signal(&(counts_of(transport_.rank(), index).*member), value);
}

void PeerBlocks::await(const std::vector<int>& ranks, int index,
                       std::uint32_t DeviceCounts::*member, std::uint32_t target, int bucket,
                       PeerWait what) {
  if (ranks.empty()) return;
  awaited_.clear();
  for (const int r : ranks) awaited_.push_back({&(counts_of(r, index).*member), r});
  memory_->await(awaited_, target, {bucket, static_cast<int>(what)}, timeout_seconds_);
}

void PeerBlocks::report(const PeerMemory::Loss& loss, const std::string& what,
                        const ExchangeLabel& label) const {
  const Pulse& pulse = *pulses_.at(loss.rank);
  fail_wait(transport_.rank(), what, label, timeout_seconds_,
            {{loss.rank, pulse.seconds_ago(), pulse.text(), true}});
}

}  // namespace starling::detail
