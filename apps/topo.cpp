// starling-topo: what a topology does, without a cluster.
#include <CLI/CLI.hpp>

#include "apps/topo/commands.h"
#include "apps/training/output/arguments.h"

namespace starling {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"starling-topo: shows, checks, draws and simulates topologies", "starling-topo"};
  return run_command(app, {add_show(app), add_simulate(app), add_measure(app), add_plan(app)}, argc,
                     argv);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  return starling::run_program("starling-topo", [&] { return starling::run(argc, argv); });
}
