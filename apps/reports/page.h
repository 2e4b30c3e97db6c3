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
/// The config's keys of which two of the runs say something else, as `optimizer.lr`, each with its
/// value in each run as JSON ("–" where a run has no such key); config.json's defaults are among
/// them.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const Runs& runs);
/// Fields of tests, test_accuracy first, that any of the runs has.
std::vector<std::string> test_fields(const Runs& runs);
/// A field that is drawn over a run: its heading, and what stands at its axis, its unit.
struct FieldText {
  std::string field, title, unit;
  bool logarithmic = false, share = false, marks = false;
};
/// All that any of the runs has: the loss, tests, what the trainer writes, and then any other field
/// of numbers under its own name.
std::vector<FieldText> drawn_fields(const Runs& runs);

/// A text or a number of a run's file at a path such as "/sync/topology/type"; `none` where it has
/// no such key.
std::string text_at(const nlohmann::json& json, const char* path, const char* none = "–");

/// What the report says of the runs, as the content of an HTML page's <main>.
std::string report_body(const Runs& runs);
/// What every page begins with.
inline constexpr std::string_view kPageBegin =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" href=\"data:,\">"
    "<title>Starling: report</title>";
/// What a browser may take for the page, as a Content-Security-Policy: its own style and script, by
/// their hashes, and of what files bring nothing.
std::string content_policy(bool follow);
/// A whole page around it, which needs no other file. `follow`: it asks for its content again, at
/// the address "body", every two seconds.
std::string report_page(const std::string& body, bool follow);
/// The same for a terminal, `width` characters wide.
std::string report_text(const Runs& runs, std::size_t width);

}  // namespace starling
