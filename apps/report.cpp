// starling-report: the results of runs as an HTML file, a live page, or text.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/reports/page.h"
#include "apps/training/output/arguments.h"
#include "core/console.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/stop_signals.h"
#include "core/text.h"

namespace starling {
namespace {

int report(int argc, char** argv) {
  CLI::App app{"Draws runs side by side: curves, configs, topologies, waits, classes",
               "starling-report"};
  std::vector<std::string> folders;
  std::string out = "report.html";
  bool text = false, watch = false, samples = false;
  int port = 0;
  add_list(app, "runs", folders, "folders of runs")->required()->type_name("RUN");
  app.add_option("--out", out, "the HTML file")->capture_default_str()->type_name("FILE");
  app.add_flag("--text", text, "draw it in the terminal instead")->excludes("--out");
  app.add_flag("--watch", watch, "serve a page that follows the runs, for this machine alone")
      ->excludes("--out", "--text");
  app.add_option("--port", port, "of --watch; 0: any that is free")
      ->check(whole_in(0, 65535))
      ->needs("--watch");
  app.add_flag("--samples", samples,
               "have each run's model of text write something, which may take minutes")
      ->excludes("--text", "--watch");
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  Runs runs;
  for (const std::string& folder : folders) {
    runs.push_back(std::make_unique<RunLog>(folder));
    if (const std::int64_t lines = runs.back()->damaged_lines; lines > 0)
      log::warning("{}/metrics.jsonl: {} damaged, left out", folder, counted(lines, "line"));
  }
  name_runs(runs);
  if (watch) {
    at_stop_signal(AtStopSignal::kNote);
    serve_report(runs, port);
  } else if (text) {
    answer(report_text(runs, terminal_width()));
  } else {
    const auto file = open_output("--out", out, {{kPageBegin}, "report"});
    const std::string page =
        report_page(report_body(runs) + (samples ? text_samples(runs) : ""), false);
    file->write(page.data(), page.size());
    file->commit();
    answer("{}\n", out);
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  return starling::run_program("starling-report", [&] { return starling::report(argc, argv); });
}
