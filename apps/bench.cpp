// starling-bench: what parts of Starling reach of the machine's limits.
#include <CLI/CLI.hpp>
#include <string>

#include "apps/bench/benches.h"
#include "apps/training/config/plugins.h"
#include "kernels/cpu/parallel.h"

namespace starling {
namespace {

int run_bench(int argc, char** argv) {
  register_builtins();
  CLI::App app{"Measures parts of Starling against a limit of the same run.", "starling-bench"};
  if (argc > 1 && std::string(argv[1]) == "--floor") argv[1] += 2;
  return run_command(app,
                     {add_step_bench(app), add_exchange_bench(app), add_floor_bench(app),
                      add_pictures_bench(app), add_augment_bench(app)},
                     argc, argv);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-bench", argv);
  return starling::run_program("starling-bench", [&] { return starling::run_bench(argc, argv); });
}
