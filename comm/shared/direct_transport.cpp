#include "comm/shared/direct_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/flight.h"
#include "comm/other_ranks.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/shared_mixer.h"
#include "comm/transports/checks.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "core/log.h"
#include "core/running_clock.h"

namespace starling {
namespace {

using detail::BucketCounts;
using detail::ControlBlock;
using detail::SharedLayout;
using Clock = RunningClock;
using Doing = detail::Pulse::Doing;

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kSlice = std::chrono::milliseconds(20);  // interval of checks during a long wait

/// A mixer with counters in shared memory, which ranks poll and sleep on.
class DirectMixer final : public detail::SharedMixer {
 public:
  DirectMixer(Backend& backend, Transport& transport, MemorySharing& sharing,
              const DirectSettings& settings)
      : SharedMixer(backend, transport,
                    {.memory = "memory", .reads_sums = true, .may_be_flat = true}),
        sharing_(sharing),
        settings_(settings),
        late_(settings.timeout_seconds) {}
  ~DirectMixer() override {
    if (control_) control_->pulse.beat(Doing::kEnded);
  }
  std::string name() const override {
    if (!shares()) return transport_.name();
    return one_host_ ? "direct" : "direct+" + transport_.name();
  }

 protected:
  bool may_share(const std::vector<Bucket>& buckets) override {
    if (transport_.size() == 1 || buckets.empty() || backend_.device() != DeviceType::kCpu)
      return false;
    if (local_.empty()) {
      const HostRanks ranks = find_hosts(transport_.world(), sharing_.host());
      local_ = ranks.local;
      one_host_ = ranks.one_host;
      any_shares_ = ranks.any_share;
    }
    return any_shares_;
  }
  std::string map(std::vector<Bucket>& buckets) override;
  void let_go() override {
    sides_.clear();
    controls_.clear();
    control_ = nullptr;
    blocks_.clear();
  }
  void check() override {}  // waits detect a loss
  void tell_published(const Progress& now) override {
    control_->pulse.beat(Doing::kPublished, now.label);
    detail::advance(counts_of(transport_.rank(), now.label.bucket).published, now.count);
  }
  void tell_released(const ExchangeLabel& label, std::uint32_t count) override {
    control_->pulse.beat(Doing::kMixed, label);
    detail::advance(counts_of(transport_.rank(), label.bucket).released, count);
  }
  void await_published(const Operation& operation) override {
    await(operation.read, &BucketCounts::published, operation.count, Doing::kWaitsForNeighbour,
          operation.label, [&] { return describe(operation.exchange, operation.label); });
  }
  void await_readers(const Progress::Contents& contents, const Progress&,
                     const ExchangeLabel& label) override {
    await(contents.readers, &BucketCounts::released, contents.count, Doing::kWaitsForReaders, label,
          [&] {
            return fmt::format("the readers of step {}, bucket {}", label.step - 1, label.bucket);
          });
  }

 private:
  ControlBlock& control_of(int rank) const { return *controls_.at(rank); }
  BucketCounts& counts_of(int rank, int bucket) const {
    return *control_of(rank).counts(static_cast<std::size_t>(bucket));
  }
  /// Waits until the member of BucketCounts reaches `target` on each of the ranks, or times out.
  /// Warns once about each rank that takes long. what() describes the wait.
  template <class What>
  void await(const std::vector<int>& ranks, std::atomic<std::uint32_t> BucketCounts::*member,
             std::uint32_t target, Doing doing, const ExchangeLabel& label, const What& what);

  MemorySharing& sharing_;
  DirectSettings settings_;
  bool any_shares_ = false;                ///< of any host
  ControlBlock* control_ = nullptr;        ///< this rank's
  std::map<int, ControlBlock*> controls_;  ///< of the ranks of this host
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  LateRanks late_;
};

std::string DirectMixer::map(std::vector<Bucket>& buckets) {
  const SharedLayout layout(ControlBlock::bytes(buckets.size()), buckets);
  SharedBlocks blocks = sharing_.share(transport_.world(), local_, layout.bytes);
  if (!blocks.refusal.empty() || local_.size() == 1) return blocks.refusal;
  blocks_ = std::move(blocks.of);
  for (std::size_t k = 0; k < local_.size(); ++k) {
    const bool own = local_[k] == transport_.rank();
    if (own) control_ = ControlBlock::make(blocks_[k]->data(), buckets.size());
    controls_[local_[k]] = own ? control_ : reinterpret_cast<ControlBlock*>(blocks_[k]->data());
  }
  take_sides(blocks_, layout, buckets);
  return {};
}

template <class What>
void DirectMixer::await(const std::vector<int>& ranks,
                        std::atomic<std::uint32_t> BucketCounts::*member, std::uint32_t target,
                        Doing doing, const ExchangeLabel& label, const What& what) {
  const auto count_of = [&](int r) -> const std::atomic<std::uint32_t>& {
    return counts_of(r, label.bucket).*member;
  };
  const auto known_of = [&](int r) {
    const detail::Pulse& pulse = control_of(r).pulse;
    return AwaitedRank{r, pulse.seconds_ago(), pulse.text(), !detail::reached(count_of(r), target)};
  };
  Clock::time_point begin{};
  auto spin = settings_.spin ? std::chrono::nanoseconds(kSpin) : std::chrono::nanoseconds(0);
  for (const int r : ranks) {
    if (detail::reached(count_of(r), target)) continue;
    if (begin == Clock::time_point{}) {
      begin = Clock::now();
      control_->pulse.beat(doing, label);
    }
    const auto deadline = begin + Clock::seconds(settings_.timeout_seconds);
    const auto waited = [&] { return Clock::seconds_since(begin); };
    while (!detail::wait_for(count_of(r), target, spin, kSlice)) {
      spin = std::chrono::nanoseconds(0);
      if (settings_.check) settings_.check();
      check_lost_ranks();
      if (Clock::now() >= deadline) {
        std::vector<AwaitedRank> known;
        for (const int other : ranks) known.push_back(known_of(other));
        fail_wait(transport_.rank(), what(), label, settings_.timeout_seconds, std::move(known));
      }
      if (late_.due(r, waited())) late_.warn(known_of(r), waited(), what(), label);
    }
    late_.came(waited());
  }
}

/// See make_direct_transport().
class DirectTransport final : public ForwardingTransport {
 public:
  DirectTransport(std::unique_ptr<Transport> between, std::unique_ptr<MemorySharing> sharing,
                  const DirectSettings& settings)
      : ForwardingTransport(std::move(between)),
        sharing_(std::move(sharing)),
        settings_(settings) {}
  std::unique_ptr<Mixer> make_mixer(Backend& backend) override {
    return std::make_unique<DirectMixer>(backend, *this, *sharing_, settings_);
  }

 private:
  std::unique_ptr<MemorySharing> sharing_;
  DirectSettings settings_;
};

}  // namespace

std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 std::unique_ptr<MemorySharing> sharing,
                                                 const DirectSettings& settings) {
  return std::make_unique<DirectTransport>(std::move(between), std::move(sharing), settings);
}

std::unique_ptr<Transport> make_direct_transport(std::unique_ptr<Transport> between,
                                                 const DirectSettings& settings) {
  return make_direct_transport(std::move(between), make_process_sharing(settings.timeout_seconds),
                               settings);
}

}  // namespace starling
