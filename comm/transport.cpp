#include "comm/transport.h"

#include <cstddef>
#include <string>

#include "comm/bucket.h"
#include "core/error.h"

namespace starling {

std::string timeline_name(const ExchangeLabel& label) {
  if (label.bucket < 0) return "numbers";
  return (label.step < 0 ? "mean " : "bucket ") + std::to_string(label.bucket);
}

Ticket Transport::start_mix(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
                            std::vector<Tensor>& received, const ExchangeLabel& label) {
  received.clear();
  if (exchange.kind == Exchange::Kind::kNone) return 0;
  require(buffers.size() >= exchange.received(), "transport", "{} buffers for an exchange that receives {}", buffers.size(),
          exchange.received());
  received.assign(buffers.begin(), buffers.begin() + static_cast<std::ptrdiff_t>(exchange.received()));
  return start_exchange(exchange, bucket.parameters, received, label);
}

}  // namespace starling
