#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/reports/run_log.h"

namespace starling {

using Runs = std::vector<std::unique_ptr<RunLog>>;

/// Names runs by their folders; those that share a name also by the folders above.
void name_runs(Runs& runs);
/// The config's keys of which two of the runs say something else, such as `optimizer.lr`, defaults
/// among them, each with its value in each run as JSON ("–": no such key).
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const Runs& runs);
/// A field that is drawn over a run: its heading, and what stands at its axis, its unit.
struct FieldText {
  std::string field, title, unit;
  bool logarithmic = false, share = false, marks = false;
};
/// All fields that any run has: the loss, tests, what the trainer writes, and any other number.
std::vector<FieldText> drawn_fields(const Runs& runs);

/// A text or a number of a run's file at a path such as "/sync/topology/type"; or `none`.
std::string text_at(const nlohmann::json& json, const char* path, const char* none = "–");

/// What the report says of the runs, as the content of an HTML page's <main>.
std::string report_body(const Runs& runs);
/// What every page begins with.
inline constexpr std::string_view kPageBegin =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" href=\"data:,\">"
    "<title>Starling: report</title>";
/// The page's Content-Security-Policy: its own style and script alone, by their hashes.
std::string content_policy(bool follow);
/// A whole page around it. `follow`: it asks for its content again every two seconds.
std::string report_page(const std::string& body, bool follow);
/// The same for a terminal, `width` characters wide.
std::string report_text(const Runs& runs, std::size_t width);

/// Serves the report on the loopback address until a stop signal comes, under a token that nobody
/// guesses, and prints where. Files are read when the page asks. `port` 0: any that is free.
void serve_report(Runs& runs, int port);

/// What language models of runs that have ended write, a section of the page. It may take minutes.
std::string text_samples(const Runs& runs);

/// Two steps from the middle of a run's timeline (--trace) as an SVG element, a row for each rank's
/// lanes. Empty where there is none; a sentence in HTML where it cannot be read.
std::string draw_timeline(const RunLog& run);

}  // namespace starling
