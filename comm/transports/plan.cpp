#include "comm/transports/plan.h"

#include <utility>
#include <vector>

#include "comm/shared/direct_transport.h"
#include "comm/transports/between_gpus.h"
#include "comm/transports/staged.h"
#include "comm/zeromq/transport.h"
#include "core/text.h"
#include "core/typed_section.h"

namespace starling {
namespace {

/// A built-in value of `sync.transport`.
struct Builtin {
  const char* name;
  bool between_cpus;
  GpuWays gpus;
  const char* summary;
};

using Use = GpuWays::Use;
constexpr Builtin kBuiltin[] = {
    {"auto",
     true,
     {Use::kWherePossible, Use::kWherePossible},
     "the fastest way that all ranks have"},
    {"direct",
     true,
     {Use::kWherePossible, Use::kRequired},
     "ranks of one host read each other's parameters in shared memory"},
    {"mpi", true, {Use::kNever, Use::kNever}, "messages; between GPUs through host memory"},
    {"nccl", false, {Use::kRequired, Use::kNever}, "GPUs send to each other"},
    {"staged", false, {Use::kNever, Use::kNever}, "between GPUs through host memory"},
};

TransportPlan plan_of(const Builtin& kind) {
  const bool reads = kind.gpus.peers != Use::kNever, nccl = kind.gpus.nccl != Use::kNever;
  return {.between_cpus = kind.between_cpus,
          .through_host = !nccl && !reads,
          .reads_parameters = reads,
          .counts_communicators = nccl && kind.gpus.peers != Use::kRequired,
          .make = [kind, reads](std::unique_ptr<Transport> messages, const TransportSite& site) {
            if (site.backend.device() == DeviceType::kCuda)
              return make_transport_between_gpus(kind.name, kind.gpus, std::move(messages), site);
            return reads ? make_direct_transport(std::move(messages),
                                                 {site.timeout_seconds, site.own_cores})
                         : std::move(messages);
          }};
}

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
        settings.heartbeat_seconds = site.heartbeat_seconds;
        settings.replica = site.replica;
        auto made = make_zeromq_transport(std::move(messages), settings, site.timeout_seconds,
                                          site.membership);
        return site.backend.device() == DeviceType::kCpu ? std::move(made)
                                                         : make_staged_transport(std::move(made));
      }};
}

}  // namespace

TransportRegistry& transports() {
  static TransportRegistry registry = [] {
    TransportRegistry builtin("transport");
    for (const Builtin& kind : kBuiltin) {
      builtin.add(
          kind.name, [&kind](ConfigSection&) { return plan_of(kind); }, kind.summary);
    }
    builtin.add("zeromq", zeromq_plan,
                "encrypted messages of ranks that know a secret; between GPUs through host memory");
    return builtin;
  }();
  return registry;
}

TransportPlan read_transport(ConfigSection& section) {
  const std::string type = section.text("type", "auto", "see `--list transports`");
  TransportPlan plan = make_typed(transports(), type, section);
  plan.name = type;
  section.finish();
  if (!plan.make)
    section.error("type", "{} gives a plan without `make`, so nothing can be made of it",
                  transports().whose(type));
  return plan;
}

std::string transports_between_cpus() {
  std::vector<std::string> names;
  for (const std::string& name : transports().names()) {
    ConfigSection::described_by([&](ConfigSection& keys) {
      if (transports().make(name, "sync.transport", keys).between_cpus) names.push_back(name);
    });
  }
  return either(names);
}

}  // namespace starling
