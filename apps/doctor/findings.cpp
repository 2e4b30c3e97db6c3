#include "apps/doctor/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/text.h"

namespace starling {
namespace {

using Level = Finding::Level;
using nlohmann::json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0, kMiB = 1024.0 * 1024.0;

std::string text_of(const json& facts, const char* key) { return facts.at(key).get<std::string>(); }

std::string gib(double bytes) { return fmt::format("{:.3g} GiB", bytes / kGiB); }

/// The ranks of each host, in the order of their first ranks.
struct Host {
  std::string name;
  std::vector<const json*> ranks;
  const json& first() const { return *ranks.front(); }
};
std::vector<Host> hosts_of(const std::vector<json>& ranks) {
  std::vector<Host> hosts;
  for (const json& rank : ranks) {
    const std::string name = rank.at("host");
    auto host = std::ranges::find(hosts, name, &Host::name);
    if (host == hosts.end()) host = hosts.insert(hosts.end(), {name, {}});
    host->ranks.push_back(&rank);
  }
  return hosts;
}

/// "a: 2, b: 2", with text(host) for each host.
template <class Text>
std::string each(const std::vector<Host>& hosts, Text text) {
  std::string all;
  for (const Host& host : hosts)
    all += (all.empty() ? "" : ", ") + shown(host.name, 40) + ": " + text(host);
  return all;
}

class Look {
 public:
  Look(const std::vector<json>& ranks, const std::optional<NetworkModel>& network)
      : ranks_(ranks), hosts_(hosts_of(ranks)), network_(network) {}

  std::vector<Finding> run() {
    versions();
    mpi();
    cores();
    memory();
    names();
    network();
    clocks();
    folder();
    gpus();
    return std::move(found_);
  }

 private:
  void add(Level level, const char* check, std::string text, std::string remedy = "") {
    // A check is reported as good only if it has no other finding.
    if (level == Level::kGood && std::ranges::find(found_, check, &Finding::check) != found_.end())
      return;
    found_.push_back({level, check, std::move(text), std::move(remedy)});
  }
  bool several() const { return hosts_.size() > 1; }
  /// The first rank whose fact differs from rank 0's.
  const json* other(const char* key) const {
    const auto at = std::ranges::find_if(
        ranks_, [&](const json& rank) { return rank.at(key) != ranks_.front().at(key); });
    return at == ranks_.end() ? nullptr : &*at;
  }

  void versions() {
    for (const char* key : {"version", "commit", "mpi"}) {
      const json* rank = other(key);
      if (!rank) continue;
      add(Level::kFault, "versions",
          fmt::format("{} of rank {} on {} is {}, of rank 0 {}", key, rank->at("rank").dump(),
                      text_of(*rank, "host"), text_of(*rank, key), text_of(ranks_[0], key)),
          "install the same build on every host");
      return;
    }
    add(Level::kGood, "versions",
        fmt::format("starling {} ({}), {}", text_of(ranks_[0], "version"),
                    text_of(ranks_[0], "commit"), text_of(ranks_[0], "mpi")));
    if (const json* rank = other("cpu")) {
      add(Level::kWarning, "processors",
          fmt::format("rank 0 computes with {}, rank {} with {}", text_of(ranks_[0], "cpu"),
                      rank->at("rank").dump(), text_of(*rank, "cpu")),
          "numbers agree to rounding, not to the bit; STARLING_CPU_ISA=avx2 (or scalar) on all "
          "makes them do the same");
    }
  }
  void mpi() {
    const std::string layout =
        each(hosts_, [](const Host& host) { return std::to_string(host.ranks.size()); });
    if (ranks_.size() == 1) {
      add(Level::kGood, "ranks", "one, so nothing between ranks was checked",
          "mpirun -n 2 starling-doctor check, with your job's hosts");
      return;
    }
    add(Level::kGood, "ranks", fmt::format("{} ({})", ranks_.size(), layout));
    for (const json& rank : ranks_) {
      for (const auto& warning : rank.at("warnings"))
        add(Level::kWarning, "binding",
            fmt::format("rank {}: {}", rank.at("rank").dump(), warning.get<std::string>()));
      if (!rank.at("warnings").empty()) break;
    }
  }
  void cores() {
    for (const Host& host : hosts_) {
      const int usable = host.first().at("usable_cores"), all = host.first().at("cores");
      const auto count = static_cast<int>(host.ranks.size());
      if (host.first().contains("cpu_quota") && usable < all) {
        add(Level::kWarning, "cores",
            fmt::format("{}: a quota of {:.3g} of its {} cores", host.name,
                        host.first().at("cpu_quota").get<double>(), all),
            "raise the container's or the job's quota, or start no more ranks than that");
      }
      if (count > std::max(usable, 1) && count > all) {
        add(Level::kWarning, "cores",
            fmt::format("{}: {} ranks share {}", host.name, count, counted(all, "core")),
            "start as many ranks as cores, or fewer with several threads each");
      }
    }
    add(Level::kGood, "cores", each(hosts_, [](const Host& host) {
          return fmt::format("{}", host.first().at("usable_cores").get<int>());
        }));
  }
  void memory() {
    for (const Host& host : hosts_) {
      const double shared = number(host.first(), "shared_memory_free"),
                   main = number(host.first(), "memory_available");
      if (shared < 256.0 * kMiB) {
        add(Level::kWarning, "shared memory",
            fmt::format("{}: {:.0f} MiB free in /dev/shm, where ranks of a host meet", host.name,
                        shared / kMiB),
            "docker run --shm-size=1g, or --ipc=host; starling-doctor clean takes away what dead "
            "jobs left");
      }
      const auto count = static_cast<double>(host.ranks.size());
      if (main / count < kGiB) {
        add(Level::kWarning, "memory",
            fmt::format("{}: {} for {}", host.name, gib(main),
                        counted(std::ssize(host.ranks), "rank")),
            "starling-train CONFIG --dry-run says what a rank takes");
      }
      if (number(host.first(), "open_files") < 1024.0) {
        add(Level::kWarning, "open files",
            fmt::format("{}: at most {:.0f}", host.name, number(host.first(), "open_files")),
            "ulimit -n 4096 before the job");
      }
    }
    add(Level::kGood, "memory", each(hosts_, [](const Host& host) {
          return gib(number(host.first(), "memory_available"));
        }));
  }
  void names() {
    std::map<std::string, std::string> owners;  // host by address
    for (const Host& host : hosts_) {
      std::vector<std::string> addresses = host.first().at("addresses");
      const bool local = !addresses.empty() &&
                         std::ranges::all_of(
                             addresses, [](const std::string& a) { return a.starts_with("127."); });
      if (addresses.empty() || (local && several())) {
        add(several() ? Level::kFault : Level::kWarning, "names",
            addresses.empty()
                ? fmt::format("{}: its own name leads to no address", host.name)
                : fmt::format("{}: its own name leads to {}, which other hosts take for themselves",
                              host.name, addresses.front()),
            fmt::format("give {} its network's address in /etc/hosts on every host, and take it "
                        "out of the line of 127.0.1.1",
                        host.name));
      }
      if (!several()) continue;
      for (const auto& interface : host.first().at("interfaces")) {
        if (interface.at("loopback").get<bool>()) continue;
        const std::string address = interface.at("address");
        const auto [at, anew] = owners.emplace(address, host.name);
        if (anew || at->second == host.name) continue;
        add(Level::kFault, "interfaces",
            fmt::format("{} and {} both have {} ({})", at->second, host.name, address,
                        text_of(interface, "name")),
            fmt::format("mpirun --mca btl_tcp_if_exclude lo,{0} --mca oob_tcp_if_exclude lo,{0}",
                        text_of(interface, "name")));
      }
    }
  }
  void network() {
    std::set<int> mtus;
    for (const json& rank : ranks_) {
      for (const auto& [host, interface] : rank.at("ways").items()) {
        const std::string name = interface;
        if (name.empty()) {
          add(Level::kFault, "network",
              fmt::format("{} has no way to {}", text_of(rank, "host"), host),
              "ip route get, a firewall, a cable");
          continue;
        }
        if (name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("br-")) {
          add(Level::kWarning, "network",
              fmt::format("{} reaches {} by {}, a bridge of containers", text_of(rank, "host"),
                          host, name),
              "mpirun --mca btl_tcp_if_include with the network that the hosts share");
        }
        for (const auto& each : rank.at("interfaces"))
          if (each.at("name") == name) mtus.insert(each.at("mtu").get<int>());
      }
    }
    if (mtus.size() > 1) {
      add(Level::kWarning, "MTU", fmt::format("differs between hosts: {}", fmt::join(mtus, ", ")),
          "ip link set dev INTERFACE mtu N, the same on all: larger packets may be lost in "
          "silence");
    }
    if (!network_) return;
    add(Level::kGood, "network",
        several() ? fmt::format("between hosts {:.0f} µs and {:.3g} Gbit/s, inside {:.0f} µs and "
                                "{:.3g} GB/s",
                                network_->between.latency * 1e6, network_->typical_link() * 8e-9,
                                network_->inside.latency * 1e6, network_->inside.bandwidth * 1e-9)
                  : fmt::format("inside the host {:.0f} µs and {:.3g} GB/s",
                                network_->inside.latency * 1e6, network_->inside.bandwidth * 1e-9));
    for (const std::string& warning : network_warnings(*network_))
      add(Level::kWarning, "network", warning);
  }
  void clocks() {
    if (!several()) return;
    for (const Host& host : hosts_) {
      const double ahead = host.first().at("clock");
      if (std::abs(ahead) < 1.0) continue;
      add(Level::kWarning, "clocks",
          fmt::format("{} is {:.3g} s {} of {}", host.name, std::abs(ahead),
                      ahead > 0.0 ? "ahead" : "behind", hosts_.front().name),
          "training does not mind; times in logs and timelines do: start chrony or ntpd");
    }
  }
  void folder() {
    const std::string path = ranks_[0].at("folder").at("path");
    for (const Host& host : hosts_) {
      const json& there = host.first().at("folder");
      if (const std::string why = there.at("unwritable"); !why.empty()) {
        add(Level::kFault, "folder",
            fmt::format("{}: {} cannot be written: {}", host.name, path, why),
            "--folder with the one for outputs, which every host can write");
      } else if (!there.at("locks").get<bool>()) {
        add(Level::kWarning, "folder",
            fmt::format("{}: files in {} cannot be locked ({})", host.name, path,
                        text_of(there, "file_system")),
            "two runs in one output folder are not noticed there");
      }
      if (number(there, "free") < kGiB) {
        add(Level::kWarning, "folder",
            fmt::format("{}: {} free in {}", host.name, gib(number(there, "free")), path),
            "checkpoints take some 4 times the parameters' bytes for each rank");
      }
      if (several() && !host.first().at("sees_folder").get<bool>()) {
        add(Level::kWarning, "folder",
            fmt::format("{} on {} is not the one on {}", path, host.name, hosts_.front().name),
            "checkpoints of all hosts must be in one folder: use a shared file system");
      }
    }
    add(Level::kGood, "folder", fmt::format("{}: {}", path, each(hosts_, [](const Host& host) {
                                              const json& there = host.first().at("folder");
                                              return fmt::format("{}, {} free",
                                                                 text_of(there, "file_system"),
                                                                 gib(number(there, "free")));
                                            })));
  }
  void gpus() {
    std::set<std::string> kinds;
    std::string none;
    for (const json& rank : ranks_) {
      const json& gpu = rank.at("gpu");
      if (gpu.contains("found")) {
        kinds.insert(text_of(gpu, "found") + ", " + text_of(gpu, "nccl"));
      } else if (none.empty()) {
        none = gpu.at("none");
      }
    }
    if (kinds.empty()) {
      add(Level::kGood, "GPU", "none: " + none);
    } else {
      add(none.empty() ? Level::kGood : Level::kWarning, "GPU",
          fmt::format("{}{}", fmt::join(kinds, "; "),
                      none.empty() ? "" : "; not on every rank: " + none),
          none.empty() ? "" : "--device auto takes GPUs only where every rank of a host has one");
    }
  }

  /// A fact that a host does not know counts as a large number, i.e. as no problem.
  static double number(const json& facts, const char* key) {
    return facts.at(key).is_number() ? facts.at(key).get<double>() : INFINITY;
  }

  const std::vector<json>& ranks_;
  std::vector<Host> hosts_;
  const std::optional<NetworkModel>& network_;
  std::vector<Finding> found_;
};

const char* word(Level level) {
  return level == Level::kGood ? "ok" : level == Level::kWarning ? "warning" : "fault";
}

}  // namespace

std::vector<Finding> findings(const std::vector<json>& ranks,
                              const std::optional<NetworkModel>& network) {
  return Look(ranks, network).run();
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  int faults = 0, warnings = 0;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<8} {:<14} {}\n", word(finding.level), finding.check, finding.text);
    if (!finding.remedy.empty()) text += fmt::format("{:24}→ {}\n", "", finding.remedy);
    faults += finding.level == Level::kFault ? 1 : 0;
    warnings += finding.level == Level::kWarning ? 1 : 0;
  }
  return shown_lines(text) +
         fmt::format("{}, {}\n", counted(faults, "fault"), counted(warnings, "warning"));
}

json findings_json(const std::vector<Finding>& findings, const std::vector<json>& ranks) {
  json list = json::array();
  bool ok = true;
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"level", word(finding.level)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
    ok &= finding.level != Level::kFault;
  }
  return {{"ok", ok}, {"findings", std::move(list)}, {"ranks", ranks}};
}

}  // namespace starling
