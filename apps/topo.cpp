// starling-topo: what a topology does, without a cluster.
#include <CLI/CLI.hpp>

#include "apps/topo/commands.h"
#include "apps/training/output/arguments.h"

namespace starling {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"starling-topo: shows, checks, draws and simulates topologies", "starling-topo"};
  app.require_subcommand(1);
  ShowOptions show_options;
  SimulateOptions simulate_options;
  MeasureOptions measure_options;
  PlanOptions plan_options;
  const CLI::App* show_command = add_show(app, show_options);
  const CLI::App* simulate_command = add_simulate(app, simulate_options);
  const CLI::App* measure_command = add_measure(app, measure_options);
  add_plan(app, plan_options);
  refuse_unknown_subcommand(app, argc, argv);
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  if (measure_command->parsed()) return measure(measure_options);
  if (show_command->parsed()) {
    show(show_options);
  } else if (simulate_command->parsed()) {
    simulate(simulate_options);
  } else {
    plan(plan_options);
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  return starling::run_program("starling-topo", [&] { return starling::run(argc, argv); });
}
