#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace starling {

/// The newest numbers of a run as a file for Prometheus' node exporter (its textfile collector): a
/// gauge `starling_<field>` for each field of metrics.jsonl that is a number, with the run's folder
/// as label `run`; times are in seconds, and what ranks have each also has a label `rank`. A field
/// whose name Prometheus could not read has `_` for what it could not, and its own name as label
/// `field`; what is not UTF-8 is shown as bytes (\\xe9). The file is whole at any moment.
class PrometheusFile {
 public:
  /// What each such file begins with.
  static constexpr const char* kBegin = "# TYPE starling_";
  PrometheusFile(std::string path, const std::string& run);
  /// Takes a line's numbers over and writes the file. Where it cannot be written, as its folder has
  /// gone, that is told once, and tried again with the next line: training goes on.
  void take(const nlohmann::ordered_json& line);

 private:
  std::string path_, label_;
  std::map<std::string, std::map<std::string, std::string>> gauges_;  ///< by name, then by labels
  bool failed_ = false;
};

}  // namespace starling
