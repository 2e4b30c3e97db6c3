#include "comm/zeromq/transport.h"

#include <utility>

#include "comm/transports/staged.h"

namespace starling {

TransportPlan zeromq_plan(ConfigSection& keys) {
  ZeroMqSettings settings;
  keys.read("port", settings.port, Range::closed(0, 65535),
            "rank r of a host listens at port + r; 0: ports of the system's choice");
  keys.read("interface", settings.interface,
            "the network interface whose address the other hosts connect to, such as eth0; empty: "
            "the first one with an IPv4 address, and 127.0.0.1 where all ranks are on one host");
  keys.read("secret", settings.secret,
            "file of 64 hexadecimal digits, the same on every host and readable by its owner "
            "alone, by which ranks know each other; empty: drawn at the start and told over MPI");
  return {
      .lets_join = true,
      .make = [settings](std::unique_ptr<Transport> messages, const TransportSite& site) mutable {
        settings.identity = site.identity;
        settings.lets_join = site.membership != nullptr;
        auto made = make_zeromq_transport(std::move(messages), settings, site.timeout_seconds,
                                          site.membership);
        return site.backend.device() == DeviceType::kCpu ? std::move(made)
                                                         : make_staged_transport(std::move(made));
      }};
}

}  // namespace starling
