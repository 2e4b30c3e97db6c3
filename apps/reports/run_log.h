#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace starling {

/// A field of metrics.jsonl over a run: as many numbers in each list. `seconds` are training's;
/// `bytes` are what all ranks had sent, and empty where the run does not say.
struct Series {
  std::vector<double> step, seconds, bytes, value;
};

/// The share of a step in which the slowest rank computed: it neither waited for others nor for
/// data. A field that is made of lines that say both.
inline constexpr const char* kUtilization = "utilization";

/// What a run's folder says of the run: its config, its metrics and its end. One under way has
/// less; half a line at the end of its metrics is left for the next refresh().
class RunLog {
 public:
  /// Error(kUsage) where the folder is none, or holds no run.
  explicit RunLog(std::string folder);
  /// Reads what has been added since; true where something has. A run that was restarted in the
  /// folder, or continued from before what was read last, is read from its start.
  bool refresh();

  const std::string& folder() const { return folder_; }
  /// The folder's name; the report puts those above it before where two runs share one.
  std::string name;
  std::int64_t damaged_lines = 0;  ///< of its metrics, which are left out
  /// What it does: "has ended", "is under way", "stopped at step 40", "no line yet", "is removed".
  std::string state() const;
  const nlohmann::json& config() const { return config_; }    ///< empty object: none
  const nlohmann::json& summary() const { return summary_; }  ///< empty object: none
  /// The numbers by field: "loss", "lr", "test_accuracy".
  const std::map<std::string, Series>& series() const { return series_; }
  /// A field's numbers; empty where there are none.
  const Series& series(const std::string& field) const;
  /// Milliseconds a step that each rank waited for others, one list a line of `waits_at`.
  const std::vector<std::vector<double>>& waits() const { return waits_; }
  const std::vector<double>& waits_at() const { return waits_at_; }
  /// Texts that it wrote in training, by step (`evaluate.prompt`).
  const std::vector<std::pair<std::int64_t, std::string>>& samples() const { return samples_; }
  /// The first line of its metrics, which no other run has: times are in it. Empty: there is none.
  const std::string& first_line() const { return first_line_; }
  std::int64_t ranks() const;
  std::int64_t last_step() const { return static_cast<std::int64_t>(step_); }
  /// Confusion matrix of the last test, with the classes' names; empty: there is none.
  struct Confusion {
    std::vector<std::string> classes;
    std::vector<std::vector<double>> counts;  ///< by true class, then by predicted one
  };
  Confusion confusion() const;

 private:
  void forget();
  void take_line(const std::string& line);

  std::string folder_;
  nlohmann::json config_ = nlohmann::json::object(), summary_ = nlohmann::json::object();
  std::map<std::string, Series> series_;
  std::vector<std::vector<double>> waits_;
  std::vector<double> waits_at_;
  std::vector<std::pair<std::int64_t, std::string>> samples_;
  std::uint64_t read_ = 0;  ///< bytes of metrics.jsonl, which begin and end with these lines
  std::string first_line_, last_line_;
  double step_ = 0.0, seconds_ = 0.0, bytes_ = 0.0;
  bool removed_ = false;
};

}  // namespace starling
