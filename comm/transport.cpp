#include "comm/transport.h"

#include "comm/mixers/messages.h"

namespace starling {

std::string timeline_name(const ExchangeLabel& label) {
  if (label.bucket < 0) return "numbers";
  return (label.step < 0 ? "mean " : "bucket ") + std::to_string(label.bucket);
}

std::unique_ptr<Mixer> Transport::make_mixer(Backend& backend) {
  return make_message_mixer(backend, *this);
}

std::string through_the_host(const Transport& transport) {
  return "exchanges by " + transport.name() + " pass through the host";
}

}  // namespace starling
