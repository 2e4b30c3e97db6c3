#include "comm/transport.h"

#include <string>

namespace starling {

std::string timeline_name(const ExchangeLabel& label) {
  if (label.bucket < 0) return "numbers";
  return (label.step < 0 ? "mean " : "bucket ") + std::to_string(label.bucket);
}

std::string through_the_host(const Transport& transport) {
  return "exchanges by " + transport.name() + " pass through the host";
}

}  // namespace starling
