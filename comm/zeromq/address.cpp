#include "comm/zeromq/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "core/error.h"
#include "core/host.h"

namespace starling::detail {

std::string address_of(const std::string& interface) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) all = nullptr;
  std::string found, names;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP))
      continue;
    const std::string name = one->ifa_name;
    names += (names.empty() ? "" : ", ") + name;
    const bool container = name.starts_with("docker") || name.starts_with("br-") ||
                           name.starts_with("virbr") || name.starts_with("cni");
    const bool suits =
        interface.empty() ? !(one->ifa_flags & IFF_LOOPBACK) && !container : name == interface;
    char text[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (found.empty() && suits && ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text))
      found = text;
  }
  if (all) ::freeifaddrs(all);
  if (found.empty())
    fail(ExitCode::kUsage, "config", {.key = "sync.transport.interface"},
         "host {} has no interface {}with an IPv4 address; there are: {}", host_name(),
         interface.empty() ? "to other hosts " : "'" + interface + "' ", names);
  return found;
}

}  // namespace starling::detail
