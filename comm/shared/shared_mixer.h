#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/mixers/messages.h"
#include "comm/shared/shared_buckets.h"

// This folder: mixers that read neighbours' parameters in shared memory of a host. shared_mixer:
// the protocol; direct_transport: for CPUs, with counters in shared memory; peer_transport: for
// GPUs, with counters in device memory; shared_buckets: the memory layout; memory_sharing,
// descriptors: how processes share memory.

namespace starling::detail {

/// Ranks of one host read each other's parameters in shared memory; those of other hosts arrive as
/// messages. Each bucket has two buffers, which all ranks alternate between. For each bucket a rank
/// counts the exchanges whose parameters it has published, which its neighbours wait for, and those
/// whose parameters it has read, which the owner of a buffer waits for before overwriting it. This
/// class decides who reads which buffer; derived classes implement the counters and waits.
class SharedMixer : public MessageMixer {
 public:
  bool share(std::vector<Bucket>& buckets) final;
  std::size_t buffers_for(const Exchange& exchange) const final;
  Ticket start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
               std::vector<Tensor>& received, const ExchangeLabel& label) final;
  void wait(Ticket ticket) final;
  void release(const ExchangeLabel& label) final;
  void wait_until_writable(const Bucket& bucket, const ExchangeLabel& label) final;

 protected:
  /// The state of a bucket's exchanges.
  struct Progress {
    std::uint32_t count = 0;  ///< exchanges started
    ExchangeLabel label;      ///< of the last
    /// By buffer: the exchange that last published it, and its readers.
    struct Contents {
      std::uint32_t count = 0;
      std::vector<int> readers;
    };
    std::array<Contents, 2> contents;
    /// Index of the buffer published last.
    std::size_t last() const { return contents[0].count == count ? 0 : 1; }
  };
  struct BucketMapping {
    std::array<Tensor, 2> own;
    std::map<int, std::array<Tensor, 2>> others;  ///< by rank
    Progress now;
    std::size_t active(const Bucket& bucket) const {
      return bucket.parameters.raw() == own[0].raw() ? 0 : 1;
    }
  };
  /// An exchange in flight: the ranks whose parameters are read here, and the messages.
  struct Operation {
    Exchange exchange;
    ExchangeLabel label;
    std::uint32_t count = 0;
    std::vector<int> read;
    Ticket messages = 0;
    bool has_messages = false;
  };
  struct Kind {
    const char* memory;  ///< name of the shared memory, for log messages
    bool reads_sums;     ///< the parameters of a group are read, too, and summed by the update
    /// If all ranks read each other, plan rounds over nodes from their flat matrix
    bool may_be_flat;
  };
  SharedMixer(Backend& backend, Transport& transport, const Kind& kind)
      : MessageMixer(backend, transport), kind_(kind) {}

  /// Whether there is anything to share. Collective; may determine the hosts.
  virtual bool may_share(const std::vector<Bucket>& buckets) = 0;
  /// Moves the buckets into shared memory (map_buffers()). Returns the reason for a failure, or "".
  /// Collective.
  virtual std::string map(std::vector<Bucket>& buckets) = 0;
  virtual void unmap() = 0;
  /// Throws if a rank is known to be lost.
  virtual void check() = 0;
  virtual void signal_published(const Progress& now) = 0;
  virtual void signal_released(const ExchangeLabel& label, std::uint32_t count) = 0;
  virtual void await_published(const Operation& operation) = 0;
  virtual void await_readers(const Progress::Contents& contents, const Progress& now,
                             const ExchangeLabel& label) = 0;

  bool shares() const { return !mappings_.empty(); }
  bool is_local(int rank) const { return std::binary_search(local_.begin(), local_.end(), rank); }
  BucketMapping& mapping_of(int bucket);
  template <class Block>
  void map_buffers(const std::vector<std::shared_ptr<Block>>& blocks, const SharedLayout& layout,
                   std::vector<Bucket>& buckets) {
    mappings_.assign(buckets.size(), {});
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t k = 0; k < local_.size(); ++k) {
        std::array<Tensor, 2>& buffers =
            local_[k] == transport_.rank() ? mappings_[b].own : mappings_[b].others[local_[k]];
        buffers = buffers_in(blocks[k], layout.offsets[b], backend_, buckets[b].parameters);
      }
      move_into(mappings_[b].own, backend_, buckets[b]);
    }
  }

  std::vector<int> local_;  ///< the ranks of this host, ascending, including this one
  bool one_host_ = false;
  std::vector<BucketMapping> mappings_;  ///< by bucket; empty if nothing is shared
  std::unordered_map<Ticket, Operation> operations_;

 private:
  bool reads_sum(const Exchange& exchange) const;
  std::vector<int> divide(const Exchange& exchange, const Bucket& bucket,
                          const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                          Operation& operation);

  Kind kind_;
  bool share_called_ = false;  ///< share() was called
  Ticket last_ = 0;
};

}  // namespace starling::detail
