#include "apps/doctor/check.h"

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

#include <fmt/format.h>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "apps/doctor/findings.h"
#include "apps/inference/version.h"
#include "apps/training/output/version.h"
#include "apps/training/run.h"
#include "comm/agreement.h"
#include "comm/planner/measure_network.h"
#include "core/console.h"
#include "core/error.h"
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

/// The interface through which this host reaches an address, e.g. "eth0"; empty: no route.
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

/// Facts about this host, with the keys of `--json`, which are sent to rank 0.
nlohmann::json host_facts(const std::string& folder) {
  const auto [unwritable, locks] = try_folder(folder);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const double quota = cpu_quota();
  const std::uint64_t memory = available_bytes();
  nlohmann::json facts{{"host", host_name()},
                       {"version", version_text()},
                       {"commit", commit_text()},
                       {"mpi", mpi_library_version()},
                       {"cpu", open_backend(DeviceType::kCpu, 1)->description()},
                       {"cores", static_cast<int>(std::thread::hardware_concurrency())},
                       {"usable_cores", usable_cores()},
                       {"memory_available", memory > 0 ? static_cast<double>(memory) : NAN},
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

using nlohmann::json;

constexpr double kMeasureSeconds = 1.5;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Seconds that this rank's clock is ahead of rank 0's: the least of several measured right after a
/// barrier, since leaving that late looks like a clock that is ahead.
double clock_ahead(World& world) {
  double least = INFINITY;
  for (int round = 0; round < 5; ++round) {
    world.barrier();
    double of_first = now();
    const double mine = of_first;
    world.broadcast(&of_first, sizeof of_first, 0);
    if (std::abs(mine - of_first) < std::abs(least)) least = mine - of_first;
  }
  return least;
}

/// Whether rank 0 sees the same folder: rank 0 creates a file, this rank looks for it.
bool sees_folder(World& world, const std::string& folder) {
  std::string name;
  if (world.rank() == 0) {
    name = fmt::format("{}/.starling-doctor-{:x}", folder, static_cast<std::uint64_t>(now() * 1e6));
    std::ofstream(name) << "starling-doctor\n";
  }
  name = world.all_gather(name).front();
  // A shared file system may show the file with a delay.
  std::error_code error;
  bool seen = false;
  for (int look = 0; look < 20 && !seen; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    // Makes a client of a shared file system ask the server again
    const std::filesystem::directory_iterator refresh(folder, error);
    seen = std::filesystem::exists(name, error);
  }
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove(name, error);
  return seen;
}

/// The interfaces through which the other hosts are reached, for each of their addresses.
json ways_to(const std::vector<json>& ranks, const json& mine) {
  json ways = json::object();
  for (const json& rank : ranks) {
    const std::string host = rank.at("host");
    if (host == mine.at("host") || ways.contains(host)) continue;
    std::string way;
    for (const auto& interface : rank.at("interfaces")) {
      if (interface.at("loopback").get<bool>()) continue;
      way = interface_to(interface.at("address"));
      if (!way.empty()) break;
    }
    ways[host] = way;
  }
  return ways;
}

std::vector<json> gathered(World& world, const json& mine) {
  std::vector<json> all;
  for (const std::string& text : world.all_gather(mine.dump())) all.push_back(json::parse(text));
  return all;
}

int look(const CheckOptions& options, const MpiSession& session) {
  const std::unique_ptr<Transport> transport = session.make_transport(options.timeout);
  World& world = transport->world();
  json mine = host_facts(options.folder);
  mine["rank"] = transport->rank();
  mine["warnings"] = session.warnings();
  mine["clock"] = transport->size() > 1 ? clock_ahead(world) : 0.0;
  mine["sees_folder"] = transport->size() == 1 || sees_folder(world, options.folder);
  mine["ways"] = ways_to(gathered(world, mine), mine);
  std::optional<NetworkModel> network;
  std::string unmeasured;
  if (transport->size() > 1) {
    MeasureSettings settings;
    settings.seconds = kMeasureSeconds;
    const auto backend = open_backend(DeviceType::kCpu, 1);
    try {
      network = measure_network(*transport, *backend, settings);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      unmeasured = error.what();  // ranks are not numbered host by host
    }
  }
  const std::vector<json> ranks = gathered(world, mine);
  std::vector<Finding> found = findings(ranks, network);
  if (!unmeasured.empty())
    found.push_back({Finding::Level::kWarning, "network", "was not measured: " + unmeasured, ""});
  const json as_json = findings_json(found, ranks);
  if (transport->rank() == 0) {
    if (options.json) {
      answer("{}\n", as_json.dump(2));
    } else {
      answer(findings_text(found));
    }
  }
  return as_json.at("ok").get<bool>() ? 0 : static_cast<int>(ExitCode::kUsage);
}

}  // namespace

int check(const CheckOptions& options) {
  return run_under_mpirun("starling-doctor",
                          [&](MpiSession& session) { return look(options, session); });
}

}  // namespace starling
