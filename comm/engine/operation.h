#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/wire.h"
#include "comm/transport.h"

namespace starling::detail {

/// An asynchronous operation: a state machine that posts non-blocking calls and proceeds as they
/// complete. advance() is called under Wire::lock(), on any thread.
class WireOperation {
 public:
  /// `partners`: all other ranks involved, ascending.
  WireOperation(std::string what, std::vector<int> partners,
                const ExchangeLabel& label = {-1, -1, -1}, std::shared_ptr<Flow> flow = nullptr)
      : flow_(std::move(flow)),
        what_(std::move(what)),
        partners_(std::move(partners)),
        label_(label) {}
  virtual ~WireOperation() = default;
  WireOperation(const WireOperation&) = delete;
  WireOperation& operator=(const WireOperation&) = delete;
  /// Posts and tests; returns whether there was progress. Sets finished().
  virtual bool advance() = 0;
  /// Ranks that have not done their part yet.
  virtual std::vector<int> missing() const = 0;
  const std::vector<int>& partners() const { return partners_; }
  const std::string& what() const { return what_; }
  Flow* flow() const { return flow_.get(); }
  const ExchangeLabel& label() const { return label_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

 protected:
  void finish() { finished_.store(true, std::memory_order_release); }
  /// Whether the first `end` bytes of the send buffer may be sent.
  bool may_send(std::size_t end) {
    if (!flow_ || end <= ready_) return true;
    ready_ = flow_->ready();
    return end <= ready_;
  }
  /// Null: all of the send buffer is ready
  const std::shared_ptr<Flow> flow_;

 private:
  std::size_t ready_ = 0;  ///< bytes, as the flow last reported
  std::string what_;
  std::vector<int> partners_;
  ExchangeLabel label_;  ///< step -1: not part of a step
  std::atomic<bool> finished_{false};
};

/// See Wire::make_call().
class WireCall : public WireOperation {
 public:
  WireCall(std::string what, std::vector<int> partners)
      : WireOperation(std::move(what), std::move(partners)) {}
  std::vector<int> missing() const override { return partners(); }
  virtual const std::vector<std::byte>& bytes() const = 0;
};

/// Wire::make_call() by point-to-point messages of this tag: for libraries without collective
/// calls.
std::shared_ptr<WireCall> make_message_call(Wire& wire, int tag, Wire::Call kind, std::string what,
                                            std::vector<std::byte> mine,
                                            const std::vector<int>& counts, int root);

/// Sends one buffer to several ranks, and receives one from each of several.
std::unique_ptr<WireOperation> make_neighbour_operation(Wire& wire, const Exchange& exchange,
                                                        const Tensor& send,
                                                        const std::vector<Tensor>& receive,
                                                        const ExchangeLabel& label,
                                                        std::shared_ptr<Flow> flow);
/// Exchange::Kind::kGroupSum: out = Σ over the group of in, in rank order; out may be in where the
/// types are the same (sum_type()). Exchange::Kind::kNodes: out = the mix. kScatterSum, kGather:
/// see Exchange::Kind.
std::unique_ptr<WireOperation> make_group_operation(Wire& wire, const Exchange& exchange,
                                                    const Tensor& in, const Tensor& out,
                                                    std::string what, const ExchangeLabel& label,
                                                    std::shared_ptr<Flow> flow);

}  // namespace starling::detail
