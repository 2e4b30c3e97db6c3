#include "comm/mixers/messages.h"

#include <cstddef>

#include "core/error.h"

namespace starling {

Ticket MessageMixer::start(const Exchange& exchange, const Bucket& bucket,
                           const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                           const ExchangeLabel& label) {
  received.clear();
  if (exchange.kind == Exchange::Kind::kNone) return 0;
  require(buffers.size() >= exchange.received(), "mixer",
          "{} buffers for an exchange that receives {}", buffers.size(), exchange.received());
  received.assign(buffers.begin(),
                  buffers.begin() + static_cast<std::ptrdiff_t>(exchange.received()));
  return transport_.start_exchange(exchange, bucket.parameters, received, label);
}

void MessageMixer::terms(const Exchange& exchange, std::vector<Tensor>& received,
                         const ExchangeLabel&, Mix& mix) {
  const bool several = received.size() > 1;
  mix.self_weight = exchange.self_weight;
  mix.received.swap(received);
  mix.weights = exchange.weights;
  mix.sum = exchange.kind == Exchange::Kind::kGroupSum && several;
}

std::unique_ptr<Mixer> make_message_mixer(Backend& backend, Transport& transport) {
  return std::make_unique<MessageMixer>(backend, transport);
}

std::unique_ptr<Mixer> Transport::make_mixer(Backend& backend) {
  return make_message_mixer(backend, *this);
}
std::unique_ptr<CapturePart> Transport::join_capture(std::int64_t) { return nullptr; }

}  // namespace starling
