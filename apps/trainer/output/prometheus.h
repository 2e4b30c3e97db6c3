#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace starling {

/// The newest numbers of a run as a file for Prometheus' node exporter (its textfile collector): a
/// gauge `starling_<field>` for each field of metrics.jsonl that is a number, with the run's folder
/// as label `run`; times are in seconds, and what ranks have each also has a label `rank`. The file
/// is whole at any moment.
class PrometheusFile {
 public:
  PrometheusFile(std::string path, const std::string& run);
  /// Takes a line's numbers over and writes the file. Error(kOutput) where it cannot be written.
  void take(const nlohmann::ordered_json& line);

 private:
  std::string path_, label_;
  std::map<std::string, std::string> gauges_;  ///< a gauge's lines by its name
};

}  // namespace starling
