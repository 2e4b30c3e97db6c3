#include "comm/transports/between_gpus.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/agreement.h"
#include "comm/nccl/transport.h"
#include "comm/shared/peer_transport.h"
#include "comm/transports/staged.h"
#include "core/host.h"
#include "core/log.h"
#include "core/peer_memory.h"

namespace starling {
namespace {

/// How NCCL identifies hosts: NCCL_HOSTID, or host name and boot id.
std::string host_of_nccl() {
  const char* given = std::getenv("NCCL_HOSTID");
  if (given && *given) return std::string("NCCL_HOSTID ") + given;
  return host_name() + " " + boot_id();
}

NcclAnswer answer_of(std::unique_ptr<Nccl>& nccl, const NcclOpener& open) {
  NcclAnswer answer;
  answer.host = host_name();
  answer.nccl_host = host_of_nccl();
  try {
    nccl = open(answer.missing);
    if (nccl) answer.device = nccl->device();
    if (!nccl && answer.missing.empty()) answer.missing = "NCCL cannot be opened";
  } catch (const Error& error) {
    answer.missing = error.what();
  }
  return answer;
}

std::vector<NcclAnswer> answers_of_all(World& world, const NcclAnswer& mine) {
  std::vector<NcclAnswer> answers;
  // Library messages may have invalid UTF-8
  const auto replace = nlohmann::json::error_handler_t::replace;
  for (const std::string& text :
       world.all_gather(nlohmann::json{mine.missing, mine.device, mine.nccl_host, mine.host}.dump(
           -1, ' ', false, replace))) {
    const auto fields = nlohmann::json::parse(text).get<std::vector<std::string>>();
    answers.push_back({fields[0], fields[1], fields[2], fields[3]});
  }
  return answers;
}

}  // namespace

std::string why_not_nccl(const std::vector<NcclAnswer>& answers) {
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].missing.empty())
      return fmt::format("rank {} has no NCCL: {}", rank, answers[rank].missing);
  }
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const NcclAnswer& answer = answers[rank];
    const auto [owner, first] = owners.emplace(std::pair(answer.nccl_host, answer.device), rank);
    if (first) continue;
    return fmt::format(
        "ranks {} and {} share the GPU {} of host {}, which NCCL refuses; one GPU a rank, or a "
        "NCCL_HOSTID of its own in each rank's environment, which is slow",
        owner->second, rank, answer.device, answer.host);
  }
  return {};
}

namespace {

/// A message if two ranks share a GPU: each then spends its GPU time waiting for the other.
/// Collective.
std::string shared_gpu(World& world, Backend& backend) {
  std::map<std::string, int> owners;
  int rank = 0;
  // If null, it is null for all ranks of this host
  const PeerMemory* memory = backend.peer_memory();
  for (const std::string& gpu :
       world.all_gather(host_name() + " " + (memory ? memory->device() : std::string()))) {
    const auto [owner, first] = owners.emplace(gpu, rank);
    if (!first) {
      return fmt::format(
          "ranks {} and {} share a GPU, which works for one at a time, for waiting too: right, but "
          "slow; sync.transport staged waits on the host",
          owner->second, rank);
    }
    ++rank;
  }
  return {};
}

/// NCCL, or host memory if NCCL is not possible or a `reason` against it is given.
std::unique_ptr<Transport> by_nccl_or_host(const std::string& name, const GpuWays& ways,
                                           std::unique_ptr<Transport> control,
                                           const TransportSite& site, std::string& reason) {
  if (ways.nccl == GpuWays::Use::kNever) return make_staged_transport(std::move(control));
  std::unique_ptr<Nccl> nccl;
  reason = why_not_nccl(answers_of_all(*control, answer_of(nccl, site.open_nccl)));
  if (reason.empty()) {
    try {
      return make_nccl_transport(std::move(control), site.backend, std::move(nccl),
                                 {site.timeout_seconds, site.max_ctas});
    } catch (const NcclSetupError& error) {  // thrown on every rank
      reason = error.message();
    }
  }
  if (ways.nccl == GpuWays::Use::kRequired) {
    fail_on_all_ranks(ExitCode::kUsage, "transport", {},
                      "sync.transport is {}, but {}; or sync.transport auto or staged", name,
                      reason);
  }
  return make_staged_transport(std::move(control));
}

}  // namespace

std::unique_ptr<Transport> make_transport_between_gpus(const std::string& name, const GpuWays& ways,
                                                       std::unique_ptr<Transport> control,
                                                       const TransportSite& site) {
  std::string no_nccl, no_peers;
  std::unique_ptr<Transport> transport =
      by_nccl_or_host(name, ways, std::move(control), site, no_nccl);
  std::unique_ptr<Transport> peers;
  if (ways.peers != GpuWays::Use::kNever) {
    peers = make_peer_transport(std::move(transport), site.backend,
                                {site.timeout_seconds, site.replica}, no_peers);
  }
  if (!no_peers.empty() && ways.peers == GpuWays::Use::kRequired) {
    fail_on_all_ranks(ExitCode::kUsage, "transport", {},
                      "sync.transport is {}, but the ranks of a host cannot share their GPUs' "
                      "memory: {}; or sync.transport auto, nccl or staged",
                      name, no_peers);
  }
  const std::string shared = peers ? shared_gpu(*peers, site.backend) : std::string();
  const bool first = (peers ? peers : transport)->rank() == 0;
  if (first && !shared.empty()) log::info("{}", shared);
  if (first && !no_peers.empty()) {
    log::info("ranks of one host do not read each other's GPU memory, because {}", no_peers);
  }
  if (first && !no_nccl.empty()) {
    log::info("exchanges between GPUs{} go through host memory, because {}",
              peers ? " that are not by reading a neighbour's parameters" : "", no_nccl);
  }
  return peers ? std::move(peers) : std::move(transport);
}

}  // namespace starling
