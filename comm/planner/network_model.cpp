#include "comm/planner/network_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "comm/engine/window.h"
#include "core/error.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

Json link_json(const LinkModel& link) {
  return {{"latency_us", link.latency * 1e6}, {"bandwidth_gbs", link.bandwidth * 1e-9}};
}

constexpr int kMostRanks = 65536;  // the same as in `starling-topo --ranks`

/// Reads the numbers of an object; errors name the key.
class Reader {
 public:
  Reader(const Json& object, std::string source, std::string path)
      : object_(object), source_(std::move(source)), path_(std::move(path)) {
    if (!object_.is_object()) error("", "an object");
  }
  double number(const char* key, double least, bool exclusive = false) const {
    const Json& value = at(key);
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    // Subnormal numbers, e.g. a bandwidth of 1e-320, would overflow quotients.
    const bool usable = std::isnormal(number) || number == 0.0;
    if (!usable || number < least || (exclusive && number == least)) {
      error(key, "a number {} {}", exclusive ? "above" : "from", least);
    }
    return number;
  }
  int count(const char* key) const {
    const double value = number(key, 1);
    if (value != std::floor(value) || value > kMostRanks)
      error(key, "a whole number from 1 to {}", kMostRanks);
    return static_cast<int>(value);
  }
  bool flag(const char* key) const {
    if (!at(key).is_boolean()) error(key, "true or false");
    return at(key).get<bool>();
  }
  LinkModel link(const char* key) const {
    const Reader inner(at(key), source_, path_ + key + ".");
    return {inner.number("latency_us", 0) * 1e-6, inner.number("bandwidth_gbs", 0, true) * 1e9};
  }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) error(key, "there");
    return *found;
  }
  template <class... Args>
  [[noreturn]] void error(const std::string& key, fmt::format_string<Args...> needed,
                          Args&&... args) const {
    fail(ExitCode::kUsage, "planner",
         "{}: '{}{}' must be {}; `starling-topo measure` writes such files", source_, path_, key,
         fmt::vformat(needed, fmt::make_format_args(args...)));
  }

 private:
  const Json& object_;
  std::string source_, path_;
};

}  // namespace

double NetworkModel::typical_link() const {
  if (host_bandwidth.empty()) return between.bandwidth;
  std::vector<double> links = host_bandwidth;
  const auto middle = links.begin() + static_cast<std::ptrdiff_t>(links.size() / 2);
  std::nth_element(links.begin(), middle, links.end());
  return *middle;
}

void NetworkModel::resize(int to_ranks, int to_ranks_per_host) {
  if (to_ranks == ranks && to_ranks_per_host == ranks_per_host) return;
  const double link = typical_link();
  ranks = to_ranks;
  ranks_per_host = std::min(to_ranks_per_host, to_ranks);
  host_bandwidth.assign(static_cast<std::size_t>(hosts()), link);
}

void NetworkModel::form_replicas(int size) {
  if (size == 1) return;
  require(replica == 1 && ranks % size == 0 && ranks_per_host % size == 0, "planner",
          "{} ranks, {} on a host, in replicas of {}", ranks, ranks_per_host, size);
  ranks /= size;
  ranks_per_host /= size;
  replica = size;
  direct = false;  // what the ranks of a replica share is no other replica's
  for (double* of_one : {&inside.bandwidth, &between.bandwidth, &memory_bandwidth}) *of_one *= size;
  message_cpu /= size;
}

void NetworkModel::set_links(double bandwidth) {
  host_bandwidth.assign(static_cast<std::size_t>(hosts()), bandwidth);
  sum_bandwidth = 0.0;
  between_measured = true;
}

void NetworkModel::derive_pair() {
  between.bandwidth =
      1.0 / std::max(1.0 / typical_link(),
                     (kHandshakeLatencies - 1.0) * between.latency / (window * replica));
}

std::vector<std::string> network_warnings(const NetworkModel& model) {
  constexpr double kHalfDuplex = 1.7;
  std::vector<std::string> warnings;
  if (model.both_directions >= kHalfDuplex) {
    warnings.push_back(fmt::format(
        "an exchange between hosts takes {:.1f} times as long as one of its directions alone, "
        "which makes gossip as much slower: a half-duplex link, or Open MPI's btl_tcp_flags (see "
        "docs/clusters.md; scripts/launch.sh sets them), or processors that cannot keep up",
        model.both_directions));
  }
  // A link that is limited by the buffers was measured as slow as they make it.
  const double round_trip = 2.0 * model.between.latency,
               filled = model.typical_link() / model.replica * round_trip / model.window;
  if (model.hosts() > 1 && filled > 0.6 && model.window < kPairWindow) {
    warnings.push_back(fmt::format(
        "the kernels' buffers hold {:.3g} MiB of a connection, which limits a pair of hosts {:.3g} "
        "ms apart to some {:.3g} MB/s: on every host sysctl net.ipv4.tcp_wmem='4096 16384 {}' "
        "net.ipv4.tcp_rmem='4096 131072 {}'",
        model.window / (1 << 20), round_trip * 500.0, model.window / round_trip * 1e-6,
        static_cast<std::int64_t>(kPairWindow), static_cast<std::int64_t>(2.0 * kPairWindow)));
  }
  return warnings;
}

std::string to_json(const NetworkModel& model) {
  Json result;
  result["ranks"] = model.ranks;
  result["ranks_per_node"] = model.ranks_per_host;
  result["replica"] = model.replica;
  result["inside"] = link_json(model.inside);
  result["between"] = link_json(model.between);
  result["between"]["measured"] = model.between_measured;
  result["hosts_bandwidth_gbs"] = Json::array();
  for (const double bandwidth : model.host_bandwidth)
    result["hosts_bandwidth_gbs"].push_back(bandwidth * 1e-9);
  result["sum_bandwidth_gbs"] = model.sum_bandwidth * 1e-9;
  result["memory_bandwidth_gbs"] = model.memory_bandwidth * 1e-9;
  result["message_cpu_ns_per_byte"] = model.message_cpu * 1e9;
  result["direct"] = model.direct;
  result["spare_cores"] = model.spare_cores;
  result["both_directions"] = model.both_directions;
  result["window_bytes"] = model.window;
  result["noise"] = model.noise;
  return result.dump(2) + "\n";
}

NetworkModel network_from_json(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded())
    fail(ExitCode::kUsage, "planner", {.file = source},
         "this is not JSON; `starling-topo measure` writes such files");
  const Reader reader(json, source, "");
  NetworkModel model;
  model.ranks = reader.count("ranks");
  model.ranks_per_host = reader.count("ranks_per_node");
  model.inside = reader.link("inside");
  model.between = reader.link("between");
  if (const auto said = json["between"].find("measured"); said != json["between"].end()) {
    if (!said->is_boolean()) reader.error("between.measured", "true or false");
    model.between_measured = said->get<bool>();
  } else {
    model.between_measured = model.hosts() > 1;  // missing in files of older versions
  }
  const Json& hosts = reader.at("hosts_bandwidth_gbs");
  if (!hosts.is_array() ||
      (!hosts.empty() && hosts.size() != static_cast<std::size_t>(model.hosts()))) {
    reader.error("hosts_bandwidth_gbs", "a list of {} numbers, or empty", model.hosts());
  }
  for (const Json& host : hosts) {
    if (!host.is_number() || !std::isnormal(host.get<double>()) || host.get<double>() < 0)
      reader.error("hosts_bandwidth_gbs", "a list of numbers above 0");
    model.host_bandwidth.push_back(host.get<double>() * 1e9);
  }
  // These keys are missing in files of older versions.
  if (json.contains("replica")) model.replica = reader.count("replica");
  if (json.contains("sum_bandwidth_gbs"))
    model.sum_bandwidth = reader.number("sum_bandwidth_gbs", 0) * 1e9;
  if (json.contains("window_bytes")) model.window = reader.number("window_bytes", 1);
  if (json.contains("noise")) model.noise = reader.number("noise", 0);
  model.memory_bandwidth = reader.number("memory_bandwidth_gbs", 0, true) * 1e9;
  model.message_cpu = reader.number("message_cpu_ns_per_byte", 0) * 1e-9;
  model.direct = reader.flag("direct");
  model.spare_cores = reader.flag("spare_cores");
  model.both_directions = reader.number("both_directions", 1);
  return model;
}

}  // namespace starling
