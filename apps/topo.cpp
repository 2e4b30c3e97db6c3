// starling-topo: what a topology does, without a cluster.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "apps/topo/commands.h"
#include "apps/trainer/output/arguments.h"
#include "core/console.h"
#include "core/error.h"

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fail(ExitCode::kUsage, "arguments", "{}", argument_error(app, error, argc, argv));
  }
  refuse_odd_numbers(app);
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
  starling::take_standard_files();
  try {
    return starling::run(argc, argv);
  } catch (const starling::Error& error) {
    fmt::print(stderr, "starling-topo: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "starling-topo: [memory] out of memory; use fewer ranks\n");
    return static_cast<int>(starling::ExitCode::kMemory);
  } catch (const std::exception& error) {
    fmt::print(stderr, "starling-topo: [internal] {}\n", error.what());
    return static_cast<int>(starling::ExitCode::kInternal);
  }
}
