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

// What lives here: memory of one host that several ranks read where it lies. shared_mixer: who
// reads whom, and which of two buffers; direct_transport: parameters of CPUs, counts in shared
// memory; peer_transport: those of GPUs, counts in device memory. shared_buckets: their layout;
// memory_sharing, descriptors: how a process gets another one's memory.

namespace starling::detail {

/// Ranks of one host read each other's parameters where they lie; what others send comes by
/// messages. A bucket has two buffers, used in turn by all ranks alike. A rank counts, per bucket,
/// the exchanges whose parameters it has published and those that it has read: neighbours wait for
/// the one, and before the next update of the other buffer its owner waits for the other. Here is
/// who reads whom, and which buffer; where the counts lie and how a rank waits for them is the
/// derived mixer's.
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
  /// How far a bucket's exchanges have come.
  struct Progress {
    std::uint32_t count = 0;  ///< exchanges started
    ExchangeLabel label;      ///< of the last
    /// Per buffer: the exchange that last published its contents, and who reads them.
    struct Contents {
      std::uint32_t count = 0;
      std::vector<int> readers;
    };
    std::array<Contents, 2> contents;
    /// The buffer that was published last
    std::size_t last() const { return contents[0].count == count ? 0 : 1; }
  };
  struct Side {
    std::array<Tensor, 2> own;
    std::map<int, std::array<Tensor, 2>> others;  ///< by rank
    Progress now;
    std::size_t active(const Bucket& bucket) const {
      return bucket.parameters.raw() == own[0].raw() ? 0 : 1;
    }
  };
  /// A bucket's exchange under way: those whose parameters are read here, and what goes by
  /// messages.
  struct Operation {
    Exchange exchange;
    ExchangeLabel label;
    std::uint32_t count = 0;
    std::vector<int> read;
    Ticket messages = 0;
    bool has_messages = false;
  };
  struct Kind {
    const char* memory;  ///< what is shared, as messages name it
    bool reads_sums;     ///< a group's members are read too, and summed by the update
    /// Where every rank reads every other one, rounds over nodes are made of their flat matrix
    bool may_be_flat;
  };
  SharedMixer(Backend& backend, Transport& transport, const Kind& kind)
      : MessageMixer(backend, transport), kind_(kind) {}

  /// Collective; may find out about the hosts. False where nothing is shared.
  virtual bool may_share(const std::vector<Bucket>& buckets) = 0;
  /// Collective: puts the buckets into memory that the host's ranks have mapped (take_sides()).
  /// Otherwise says why that is refused.
  virtual std::string map(std::vector<Bucket>& buckets) = 0;
  virtual void let_go() = 0;
  /// Throws what is known to be lost.
  virtual void check() = 0;
  virtual void tell_published(const Progress& now) = 0;
  virtual void tell_released(const ExchangeLabel& label, std::uint32_t count) = 0;
  virtual void await_published(const Operation& operation) = 0;
  virtual void await_readers(const Progress::Contents& contents, const Progress& now,
                             const ExchangeLabel& label) = 0;

  bool shares() const { return !sides_.empty(); }
  bool is_local(int rank) const { return std::binary_search(local_.begin(), local_.end(), rank); }
  Side& side_of(int bucket);
  template <class Block>
  void take_sides(const std::vector<std::shared_ptr<Block>>& blocks, const SharedLayout& layout,
                  std::vector<Bucket>& buckets) {
    sides_.assign(buckets.size(), {});
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t k = 0; k < local_.size(); ++k) {
        std::array<Tensor, 2>& buffers =
            local_[k] == transport_.rank() ? sides_[b].own : sides_[b].others[local_[k]];
        buffers = buffers_in(blocks[k], layout.offsets[b], backend_, buckets[b].parameters);
      }
      move_into(sides_[b].own, backend_, buckets[b]);
    }
  }

  std::vector<int> local_;  ///< the ranks of this host, ascending, this one included
  bool one_host_ = false;
  std::vector<Side> sides_;  ///< by bucket; empty where nothing is shared
  std::unordered_map<Ticket, Operation> operations_;

 private:
  bool reads_sum(const Exchange& exchange) const;
  std::vector<int> divide(const Exchange& exchange, const Bucket& bucket,
                          const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                          Operation& operation);

  Kind kind_;
  bool asked_ = false;  ///< share() has been called
  Ticket last_ = 0;
};

}  // namespace starling::detail
