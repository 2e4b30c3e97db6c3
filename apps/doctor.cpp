// starling-doctor: says what went wrong with a run, and takes away what a dead job's MPI left.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/doctor/check.h"
#include "apps/doctor/flight_record.h"
#include "apps/doctor/leftovers.h"
#include "apps/training/output/arguments.h"
#include "core/console.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

int run_blame(const std::string& run) {
  const FlightRecords records = read_flight_records(run);
  complain("starling-doctor: {}", start_text(records));
  answer(shown_lines(blame(records)));
  for (const Error& error : records.damaged) complain("starling-doctor: {}", error.what());
  return records.damaged.empty() ? 0 : static_cast<int>(ExitCode::kUsage);
}

int run_clean(bool look_only) {
  std::vector<Leftover> found = find_leftovers(leftover_places());
  if (!look_only) remove_leftovers(found);
  std::int64_t bytes = 0;
  std::size_t count = 0;
  for (const Leftover& one : found) {
    if (!one.kept.empty()) {
      answer("left: {}, {:.1f} MB: {}\n", one.path, static_cast<double>(one.bytes) / 1e6, one.kept);
      continue;
    }
    answer("{}: {}, {:.1f} MB\n", look_only ? "could go" : "removed", one.path,
           static_cast<double>(one.bytes) / 1e6);
    bytes += one.bytes;
    ++count;
  }
  if (found.empty()) {
    answer("nothing is left of jobs that have ended\n");
  } else {
    answer("{} {} of jobs that have ended, {:.1f} MB\n", count,
           count == 1 ? "file or folder" : "files and folders", static_cast<double>(bytes) / 1e6);
  }
  return 0;
}

int run_doctor(int argc, char** argv) {
  CLI::App app{
      "Looks whether hosts are fit for training, says what went wrong with a run, and takes away "
      "what a dead job's MPI left.",
      "starling-doctor"};
  std::string run;
  bool look_only = false;
  CheckOptions check_options;
  CLI::App* blamed =
      app.add_subcommand("blame",
                         "who waits for whom since when, what came first, and where ranks issued "
                         "different things, from all ranks' flight records");
  blamed->add_option("RUN", run, "the run's output folder, or a folder with flight records")
      ->required();
  CLI::App* cleaned =
      app.add_subcommand("clean",
                         "take away what Open MPI left on this host of jobs that have ended: "
                         "shared memory and launchers' folders that nobody uses");
  cleaned->add_flag("--look", look_only, "say what would go, and remove nothing");
  CLI::App* checked = app.add_subcommand("check",
                                         "look at this host, and under mpirun at all of the job's: "
                                         "MPI, cores, memory, names, network, "
                                         "clocks, folder, GPU, each with what to do about it");
  checked->add_flag("--json", check_options.json, "print it as JSON");
  checked->add_option("--folder", check_options.folder, "where outputs are to lie")
      ->capture_default_str();
  add_number(*checked, "--timeout", check_options.timeout,
             "seconds after which a wait for another rank is an error", 1.0, 1e6);
  return run_command(app,
                     {{blamed, [&] { return run_blame(run); }},
                      {cleaned, [&] { return run_clean(look_only); }},
                      {checked, [&] { return check(check_options); }}},
                     argc, argv);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  return starling::run_program("starling-doctor", [&] { return starling::run_doctor(argc, argv); });
}
