#include "comm/shared/direct_transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/flight.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/shared_mixer.h"
#include "comm/transports/checks.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "core/log.h"

namespace starling {
namespace {

using detail::BucketCounts;
using detail::ControlBlock;
using detail::SharedLayout;
using Doing = detail::Pulse::Doing;

/// A mixer with counters in shared memory, which ranks poll and sleep on.
class DirectMixer final : public detail::SharedMixer {
 public:
  DirectMixer(Backend& backend, Transport& transport, MemorySharing& sharing,
              const DirectSettings& settings)
      : SharedMixer(backend, transport,
                    {.memory = "memory", .reads_sums = true, .may_be_flat = true}),
        sharing_(sharing),
        await_(settings.timeout_seconds, settings.spin, settings.check) {}
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
  void unmap() override {
    mappings_.clear();
    controls_.clear();
    control_ = nullptr;
    blocks_.clear();
  }
  void check() override {}  // waits detect a loss
  void signal_published(const Progress& now) override {
    control_->pulse.beat(Doing::kPublished, now.label);
    detail::advance(own_counts(now.label.bucket).published, now.count);
  }
  void signal_released(const ExchangeLabel& label, std::uint32_t count) override {
    control_->pulse.beat(Doing::kMixed, label);
    detail::advance(own_counts(label.bucket).released, count);
  }
  void await_published(const Operation& operation) override {
    await_(controls_, transport_.rank(), operation.read,
           static_cast<std::size_t>(operation.label.bucket), &BucketCounts::published,
           operation.count, Doing::kWaitsForNeighbour, operation.label,
           [&] { return describe(operation.exchange, operation.label); });
  }
  void await_readers(const Progress::Contents& contents, const Progress&,
                     const ExchangeLabel& label) override {
    await_(controls_, transport_.rank(), contents.readers, static_cast<std::size_t>(label.bucket),
           &BucketCounts::released, contents.count, Doing::kWaitsForReaders, label, [&] {
             return fmt::format("the readers of step {}, bucket {}", label.step - 1, label.bucket);
           });
  }

 private:
  BucketCounts& own_counts(int bucket) const {
    return *control_->counts(static_cast<std::size_t>(bucket));
  }
  MemorySharing& sharing_;
  detail::CountWaits await_;
  bool any_shares_ = false;          ///< of any host
  ControlBlock* control_ = nullptr;  ///< this rank's
  detail::ControlBlocks controls_;   ///< of the ranks of this host
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
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
  map_buffers(blocks_, layout, buckets);
  return {};
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
