// starling-doctor: says what went wrong with a run, from what its ranks left.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "apps/trainer/output/arguments.h"
#include "apps/trainer/report/flight_record.h"
#include "core/console.h"
#include "core/error.h"

namespace starling {
namespace {

ExitCode run_blame(const std::string& run) {
  const FlightRecords records = read_flight_records(run);
  const std::string text = blame(records);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    fail(ExitCode::kOutput, "output", "stdout cannot be written; look at where it leads");
  for (const Error& error : records.damaged) fmt::print(stderr, "starling-doctor: {}\n", error.what());
  return records.damaged.empty() ? ExitCode::kOk : ExitCode::kUsage;
}

int run_doctor(int argc, char** argv) {
  CLI::App app{"Says what went wrong with a run, from what its ranks left.", "starling-doctor"};
  app.require_subcommand(1);
  std::string run;
  CLI::App* blamed = app.add_subcommand(
      "blame", "who waits for whom since when, what came first, and where ranks issued different things, from all ranks' flight records");
  blamed->add_option("RUN", run, "the run's output folder, or a folder with flight records")->required();
  refuse_unknown_subcommand(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fail(ExitCode::kUsage, "arguments", "{}", argument_error(app, error, argc, argv));
  }
  return static_cast<int>(run_blame(run));
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::take_standard_files();
  try {
    return starling::run_doctor(argc, argv);
  } catch (...) {
    const starling::Error failure = starling::as_error(std::current_exception());
    fmt::print(stderr, "starling-doctor: {}\n", failure.what());
    return static_cast<int>(failure.code());
  }
}
