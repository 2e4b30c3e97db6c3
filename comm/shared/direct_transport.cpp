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
#include "comm/lost_ranks.h"
#include "comm/rank_processes.h"
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
constexpr auto kSlice = std::chrono::milliseconds(20);  // of a long wait, between checks
// after which a rank is called late, at first
constexpr double kLateSeconds = 10.0;

/// Counts in shared memory, at which ranks look and on which they sleep.
class DirectMixer final : public detail::SharedMixer {
 public:
  DirectMixer(Backend& backend, Transport& transport, MemorySharing& sharing,
              const DirectSettings& settings)
      : SharedMixer(backend, transport,
                    {.memory = "memory", .reads_sums = true, .may_be_flat = true}),
        sharing_(sharing),
        settings_(settings) {}
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
    if (local_.empty()) find_hosts();
    return any_shares_;
  }
  std::string map(std::vector<Bucket>& buckets) override;
  void let_go() override {
    sides_.clear();
    controls_.clear();
    control_ = nullptr;
    blocks_.clear();
  }
  void check() override {}  // a wait finds a loss
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
  void find_hosts();
  /// The member of BucketCounts comes to `target` on each of the ranks, within the limit; warns
  /// once of each rank that takes long. what() names what is waited for.
  template <class What>
  void await(const std::vector<int>& ranks, std::atomic<std::uint32_t> BucketCounts::*member,
             std::uint32_t target, Doing doing, const ExchangeLabel& label, const What& what);

  MemorySharing& sharing_;
  DirectSettings settings_;
  bool any_shares_ = false;                ///< of any host
  ControlBlock* control_ = nullptr;        ///< this rank's
  std::map<int, ControlBlock*> controls_;  ///< of the ranks of this host
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  std::map<int, double> late_after_;  ///< doubles with every warning about the rank
};

void DirectMixer::find_hosts() {
  const std::vector<std::string> hosts = transport_.world().all_gather(sharing_.host());
  const std::string& mine = hosts[static_cast<std::size_t>(transport_.rank())];
  std::map<std::string, int> ranks_of;
  for (int r = 0; r < transport_.size(); ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    if (host == mine) local_.push_back(r);
    any_shares_ |= ++ranks_of[host] > 1;
  }
  one_host_ = ranks_of.size() == 1;
}

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
    double& late_after =
        late_after_.try_emplace(r, std::min(kLateSeconds, settings_.timeout_seconds / 3))
            .first->second;
    bool late = false;
    while (!detail::wait_for(count_of(r), target, spin, kSlice)) {
      spin = std::chrono::nanoseconds(0);
      if (settings_.check) settings_.check();
      check_lost_ranks();
      if (Clock::now() >= deadline) {
        std::vector<AwaitedRank> known;
        for (const int other : ranks) {
          const detail::Pulse& pulse = control_of(other).pulse;
          known.push_back({other, pulse.seconds_ago(), pulse.text(),
                           !detail::reached(count_of(other), target)});
        }
        fail_wait(transport_.rank(), what(), label, settings_.timeout_seconds, std::move(known));
      }
      if (!late && waited() >= late_after) {
        late = true;
        late_after *= 2;
        note_flight(FlightEvent::kLate, label, std::span(&r, 1));
        const detail::Pulse& pulse = control_of(r).pulse;
        const std::string state = state_of_rank(r);
        log::warning("rank {} is late: waited {:.1f} s for {}; {:.1f} s ago it {}{}", r, waited(),
                     what(), pulse.seconds_ago(), pulse.text(), state.empty() ? "" : "; " + state);
      }
    }
    if (late) log::warning("rank {} came after {:.1f} s", r, waited());
  }
}

/// Another transport whose mixers read what they can where it lies.
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
