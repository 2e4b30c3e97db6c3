#include "apps/doctor/host_facts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/inference/version.h"
#include "apps/training/output/version.h"
#include "comm/mpi/session.h"
#include "core/host.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  }
  return text;
}

int mtu_of(const char* interface) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return 0;
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  const int mtu = ::ioctl(socket, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
  ::close(socket);
  return mtu;
}

/// IPv4 addresses of the interfaces that are up, which MPI's TCP uses.
nlohmann::json interfaces() {
  nlohmann::json list = nlohmann::json::array();
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return list;
  for (const ifaddrs* at = first; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0)
      continue;
    list.push_back({{"name", at->ifa_name},
                    {"address", address_text(at->ifa_addr)},
                    {"mtu", mtu_of(at->ifa_name)},
                    {"loopback", (at->ifa_flags & IFF_LOOPBACK) != 0}});
  }
  ::freeifaddrs(first);
  return list;
}

/// The addresses that the host's own name resolves to.
nlohmann::json own_addresses() {
  nlohmann::json list = nlohmann::json::array();
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host_name().c_str(), nullptr, &hints, &found) != 0) return list;
  for (const addrinfo* at = found; at; at = at->ai_next) list.push_back(address_text(at->ai_addr));
  ::freeaddrinfo(found);
  return list;
}

double free_bytes(const std::string& folder) {
  struct statvfs facts {};
  if (::statvfs(folder.c_str(), &facts) != 0) return NAN;
  return static_cast<double>(facts.f_bavail) * static_cast<double>(facts.f_frsize);
}

/// A file system's name, by its number in statfs(2).
std::string file_system(const std::string& folder) {
  struct statfs facts {};
  if (::statfs(folder.c_str(), &facts) != 0) return "";
  static constexpr std::pair<unsigned, const char*> kKnown[]{
      {0x6969, "nfs"},        {0xef53, "ext4"},        {0x58465342, "xfs"},
      {0x01021994, "tmpfs"},  {0x794c7630, "overlay"}, {0x9123683e, "btrfs"},
      {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},    {0x65735546, "fuse"},
      {0xff534d42, "cifs"},   {0x2fc12fc1, "zfs"},     {0x19830326, "beegfs"}};
  for (const auto& [number, name] : kKnown)
    if (static_cast<unsigned>(facts.f_type) == number) return name;
  return "other";
}

/// Whether a file can be written and locked in the folder; if not, the system's error.
std::pair<std::string, bool> try_folder(const std::string& folder) {
  std::string path = folder + "/.starling-doctor.XXXXXX";
  const int descriptor = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) return {std::strerror(errno), false};
  const bool locks = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  ::close(descriptor);
  ::unlink(path.c_str());
  return {"", locks};
}

/// The bytes of a line "Key:  123 kB" of /proc/meminfo.
double memory_line(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  for (std::string name, unit; in >> name;) {
    double kib = 0.0;
    in >> kib;
    std::getline(in, unit);
    if (name == key) return kib * 1024.0;
  }
  return NAN;
}

/// A rank's GPU, or why it has none.
nlohmann::json gpu_facts() {
  try {
    std::string nccl = nccl_version_line();
    while (nccl.ends_with('\n')) nccl.pop_back();
    return {{"found", open_backend(DeviceType::kCuda, 1)->description()},
            {"nccl", nccl.empty() ? "no NCCL" : nccl}};
  } catch (const std::exception& error) {
    return {{"none", error.what()}};
  }
}

}  // namespace

std::string interface_to(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);  // any port: no packet is sent
  if (::inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return "";
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return "";
  sockaddr_in own{};
  socklen_t size = sizeof own;
  std::string mine;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0)
    mine = address_text(reinterpret_cast<const sockaddr*>(&own));
  ::close(socket);
  for (const auto& interface : interfaces())
    if (interface["address"] == mine) return interface["name"];
  return "";
}

nlohmann::json host_facts(const std::string& folder) {
  const auto [unwritable, locks] = try_folder(folder);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const double quota = cpu_quota();
  nlohmann::json facts{{"host", host_name()},
                       {"version", version_text()},
                       {"commit", commit_text()},
                       {"mpi", mpi_library_version()},
                       {"cpu", open_backend(DeviceType::kCpu, 1)->description()},
                       {"cores", static_cast<int>(std::thread::hardware_concurrency())},
                       {"usable_cores", usable_cores()},
                       {"memory_available", memory_line("MemAvailable:")},
                       {"shared_memory_free", free_bytes("/dev/shm")},
                       {"open_files", static_cast<double>(files.rlim_cur)},
                       {"addresses", own_addresses()},
                       {"interfaces", interfaces()},
                       {"folder",
                        {{"path", folder},
                         {"file_system", file_system(folder)},
                         {"free", free_bytes(folder)},
                         {"unwritable", unwritable},
                         {"locks", locks}}},
                       {"gpu", gpu_facts()}};
  if (std::isfinite(quota)) facts["cpu_quota"] = quota;
  return facts;
}

}  // namespace starling
