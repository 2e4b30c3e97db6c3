#pragma once

#include <memory>

#include "comm/mixer.h"

// What lives here: ways to bring parameters to the neighbours that any transport carries: as they
// are, or encoded. A new encoding is its file and a line in comm/mixer.cpp. Those that read a
// neighbour's memory are in comm/shared.

namespace starling {

/// Parameters travel as messages, by any transport, into buffers. Mixers that send messages where
/// nothing better is possible derive from it.
class MessageMixer : public Mixer {
 public:
  using Mixer::Mixer;
  std::string name() const override { return transport_.name(); }
  bool share(std::vector<Bucket>&) override { return false; }
  std::size_t buffers_for(const Exchange& exchange) const override { return exchange.received(); }
  Ticket start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
               std::vector<Tensor>& received, const ExchangeLabel& label) override;
  void wait(Ticket ticket) override { transport_.wait(ticket); }
  void terms(const Exchange& exchange, std::vector<Tensor>& received, const ExchangeLabel& label,
             Mix& mix) override;
  // Nothing to do: the buffers are this rank's own.
  void release(const ExchangeLabel&) override {}
  // Nothing to wait for: the update is in place.
  void wait_until_writable(const Bucket&, const ExchangeLabel&) override {}
  std::string why_not_captured() const override { return transport_.why_not_captured(); }
  // The transport follows its exchanges itself
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }
};

std::unique_ptr<Mixer> make_message_mixer(Backend& backend, Transport& transport);

}  // namespace starling
