#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/report/run_log.h"

namespace starling {

using Runs = std::vector<std::unique_ptr<RunLog>>;

/// Names runs by their folders; those that share a name also by the folders above.
void name_runs(Runs& runs);
/// The config's keys whose values differ between the runs, as `optimizer.lr`, each with its value
/// in each run as JSON ("–" where a run has no such key); config.json's defaults are among them.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const Runs& runs);
/// Fields of tests, test_accuracy first, that any of the runs has.
std::vector<std::string> test_fields(const Runs& runs);

/// A text or a number of a run's file at a path such as "/sync/topology/type"; `none` where it has
/// no such key.
std::string text_at(const nlohmann::json& json, const char* path, const char* none = "–");

/// What the report says of the runs, as the content of an HTML page's <main>.
std::string report_body(const Runs& runs);
/// A whole page around it, which needs no other file. `follow`: it asks for its content again, at
/// the address "body", every two seconds.
std::string report_page(const std::string& body, bool follow);
/// The same for a terminal, `width` characters wide.
std::string report_text(const Runs& runs, std::size_t width);

}  // namespace starling
