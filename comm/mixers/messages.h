#pragma once

#include <memory>

#include "comm/mixer.h"

// This folder: mixers that work with any transport, and send parameters plain or encoded. A new
// encoding is a file here and a line in comm/mixer.cpp. Mixers that read a neighbour's memory are
// in comm/shared.

namespace starling {

/// Sends parameters as messages. Also the base class of mixers that send messages to some ranks
/// only.
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
  // The buffers are this rank's own.
  void release(const ExchangeLabel&) override {}
  // The update is in place.
  void wait_until_writable(const Bucket&, const ExchangeLabel&) override {}
  std::string why_not_captured() const override { return transport_.why_not_captured(); }
  // The transport keeps track of its exchanges.
  std::unique_ptr<CapturePart> join_capture(std::int64_t) override { return nullptr; }
};

std::unique_ptr<Mixer> make_message_mixer(Backend& backend, Transport& transport);

}  // namespace starling
