#include "apps/doctor/check.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "apps/doctor/findings.h"
#include "apps/doctor/host_facts.h"
#include "comm/agreement.h"
#include "comm/mpi/session.h"
#include "comm/planner/measure_network.h"
#include "core/console.h"
#include "core/error.h"
#include "core/host.h"
#include "core/safetensors.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

using nlohmann::json;

constexpr double kMeasureSeconds = 1.5;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Seconds that this rank's clock is ahead of rank 0's: measured several times right after a
/// barrier, of which the smallest magnitude counts, since leaving the barrier late looks like a
/// clock that is ahead.
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
  MpiSession session;
  try {
    return look(options, session);
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    if (session.size() > 1)
      session.abort(failure.code(), fmt::format("starling-doctor: {}", failure.what()));
    complain("starling-doctor: {}", failure.what());
    return static_cast<int>(failure.code());
  }
}

}  // namespace starling
