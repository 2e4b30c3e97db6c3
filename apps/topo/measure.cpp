#include "apps/topo/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/training/run.h"
#include "comm/agreement.h"
#include "comm/planner/measure_network.h"
#include "core/console.h"
#include "core/core_wait.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/host.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

struct MeasureOptions {
  double seconds = 4.0;
  double timeout = 60.0;
  int threads = 0;  ///< 0: an equal share of the host's cores
  std::string output;
};

int measure(const MeasureOptions& options, const MpiSession& session) {
  const std::unique_ptr<Transport> transport = session.make_transport(options.timeout);
  std::unique_ptr<AtomicFile> file;
  on_all_ranks(*transport, [&] {
    if (transport->rank() == 0 && !options.output.empty())
      file = open_output("--output", options.output, {{"{\n  \"ranks\": "}, "measured network"});
  });
  if (transport->size() < 2) {
    fail(ExitCode::kUsage, "measure",
         "there is one rank and nothing between ranks to measure; start it as mpirun -n 2 "
         "starling-topo measure");
  }
  MeasureSettings settings;
  settings.seconds = options.seconds;
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, usable_cores() / transport->world().local_size());
  settings.spare_cores = cores_of_rank(transport->world().local_size()) > threads;
  const auto backend = open_backend(DeviceType::kCpu, threads);
  const CoreWait core_wait;
  NetworkModel network = measure_network(*transport, *backend, settings);
  network.noise = core_wait.share();
  on_all_ranks(*transport, [&] {
    if (transport->rank() != 0) return;
    const std::string text = to_json(network);
    if (file) {
      file->write(text.data(), text.size());
      file->commit();
    }
    answer(text);
    for (const std::string& warning : network_warnings(network)) complain("warning: {}", warning);
    if (const std::string busy = busy_text("warning: ", network.noise); !busy.empty())
      complain("{}; measure again when the machine is idle", busy);
  });
  return 0;
}

}  // namespace

Command add_measure(CLI::App& app) {
  const auto given = std::make_shared<MeasureOptions>();
  MeasureOptions& options = *given;
  CLI::App* command = app.add_subcommand(
      "measure", "under mpirun: measure latency and bandwidth on the real ranks, for plan");
  add_number(*command, "--seconds", options.seconds, "about how long it may take", 0.1, 600.0);
  add_number(*command, "--timeout", options.timeout,
             "seconds after which a wait for another rank is an error", 1.0, 1e6);
  command
      ->add_option(
          "--threads", options.threads,
          "compute threads of each rank in training (default: an equal share of the cores)")
      ->check(whole_in(1, 1024));
  command->add_option("--output", options.output,
                      "write the figures into this file, for `plan --measured`");
  return {command, [given] {
            return run_under_mpirun("starling-topo",
                                    [&](MpiSession& session) { return measure(*given, session); });
          }};
}

}  // namespace starling
