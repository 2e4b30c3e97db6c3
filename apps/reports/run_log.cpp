#include "apps/reports/run_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/training/output/output_file.h"
#include "core/config.h"
#include "core/csv.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {
namespace {

/// A file of a run that is still being written may be missing, or gone between two looks.
nlohmann::json json_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return nlohmann::json::object();
  nlohmann::json json = read_json_file(path);
  if (!json.is_object())
    fail(ExitCode::kUsage, "report", "{}: is no JSON object; needed: a run's file", shown(path));
  return json;
}

/// Reads `count` bytes of a file from an offset; fewer at its end.
std::string bytes_of(const RegularFile& file, std::uint64_t from, std::uint64_t count) {
  std::string text(count, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::pread(file.descriptor(), text.data() + have, text.size() - have,
                                static_cast<off_t>(from + have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

/// Whether a process has the folder's lock: a run writes there.
bool is_locked(const std::string& folder) {
  const std::string path = folder + "/" + FolderLock::kName;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0;
  ::close(descriptor);
  return held;
}

}  // namespace

RunLog::RunLog(std::string folder) : folder_(std::move(folder)) {
  while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
  std::error_code error;
  if (!std::filesystem::is_directory(folder_, error)) {
    fail(ExitCode::kUsage, "report", "{}: {}; needed: a run's folder, which has config.json",
         shown(folder_),
         std::filesystem::exists(folder_, error) ? "is no folder" : "there is no such folder");
  }
  if (!std::filesystem::exists(folder_ + "/config.json", error)) {
    fail(ExitCode::kUsage, "report",
         "{}: has no config.json, so it is no run's folder; needed: what --output named",
         shown(folder_));
  }
  name = std::filesystem::weakly_canonical(folder_, error).filename().string();
  if (name.empty()) name = folder_;
  refresh();
  if (config_.contains("model_type"))  // as Hugging Face's transformers write it
    fail(ExitCode::kUsage, "report",
         "{}: its config.json is a model's, not a run's; needed: what --output named",
         shown(folder_));
}

void RunLog::forget() {
  series_.clear();
  waits_.clear();
  waits_at_.clear();
  samples_.clear();
  damaged_lines = 0;
  first_line_.clear();
  last_line_.clear();
  read_ = 0;
  step_ = seconds_ = bytes_ = 0.0;
}

bool RunLog::refresh() {
  std::error_code error;
  const bool gone = !std::filesystem::is_directory(folder_, error);
  if (gone || removed_) {
    const bool change = gone != removed_;
    removed_ = gone;
    if (gone) return change;
  }
  const auto before = std::make_pair(config_, summary_);
  config_ = json_of(folder_ + "/config.json");
  summary_ = json_of(folder_ + "/summary.json");
  bool change = before != std::make_pair(config_, summary_);

  const RegularFile file(folder_ + "/metrics.jsonl");
  if (!file.fault().empty()) {
    change |= read_ > 0;
    forget();
    return change;
  }
  // A replaced file may have the same inode and be longer: compare its lines.
  if (bytes_of(file, 0, first_line_.size()) != first_line_ ||
      bytes_of(file, read_ - std::min<std::uint64_t>(read_, last_line_.size() + 1),
               last_line_.size()) != last_line_) {
    forget();
    change = true;
  }
  const std::string text =
      bytes_of(file, read_, file.bytes() - std::min<std::uint64_t>(read_, file.bytes()));
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    last_line_ = text.substr(begin, end - begin);
    if (read_ == 0 && begin == 0) first_line_ = last_line_;
    take_line(last_line_);
    begin = end + 1;
    change = true;
  }
  // What follows the last line's end is half a line: it is read again when it is whole.
  const std::size_t whole = text.rfind('\n');
  if (whole != std::string::npos) read_ += whole + 1;
  return change;
}

void RunLog::take_line(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) ++damaged_lines;
  const auto number = [&](const char* key, double fallback) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number() ? found->get<double>() : fallback;
  };
  if (!json.is_object() || !json.contains("step")) return;
  const double step = std::clamp(number("step", step_), 0.0, 9e15);
  seconds_ += std::max(step - step_, 0.0) * number("step_ms", 0.0) / 1e3;
  bytes_ = number("bytes_sent", bytes_);
  step_ = step;
  if (const auto sample = json.find("sample"); sample != json.end() && sample->is_string())
    samples_.emplace_back(static_cast<std::int64_t>(step), sample->get<std::string>());
  const auto add = [&](const std::string& key, double value) {
    Series& series = series_[key];
    series.step.push_back(step);
    series.seconds.push_back(seconds_);
    if (bytes_ > 0.0) series.bytes.push_back(bytes_);
    series.value.push_back(value);
  };
  for (const auto& [key, value] : json.items()) {
    if (value.is_number() || value.is_null()) add(key, number(key.c_str(), NAN));
  }
  if (const double length = number("step_ms", 0.0); length > 0.0 && json.contains("wait_ms")) {
    const double waited = number("wait_ms", NAN) + number("data_wait_ms", 0.0);
    add(kUtilization, std::clamp(1.0 - waited / length, 0.0, 1.0));
  }
  if (const auto waits = json.find("rank_wait_ms"); waits != json.end() && waits->is_array()) {
    std::vector<double> each;
    for (const auto& wait : *waits) each.push_back(wait.is_number() ? wait.get<double>() : NAN);
    waits_.push_back(std::move(each));
    waits_at_.push_back(step);
  }
}

const Series& RunLog::series(const std::string& field) const {
  static const Series kNone;
  const auto found = series_.find(field);
  return found == series_.end() ? kNone : found->second;
}

std::int64_t RunLog::ranks() const {
  if (const auto ranks = summary_.find("ranks");
      ranks != summary_.end() && ranks->is_number_integer())
    return ranks->get<std::int64_t>();
  return waits_.empty() ? 1 : static_cast<std::int64_t>(waits_.back().size());
}

std::string RunLog::state() const {
  if (removed_) return "is removed";
  if (is_locked(folder_)) return series_.empty() ? "no line yet" : "is under way";
  // A run that went on after its end, as older versions left the summary then
  const auto steps = summary_.find("steps");
  const bool beyond = steps != summary_.end() && steps->is_number() && steps->get<double>() < step_;
  if (!summary_.empty() && !beyond) return "has ended";
  if (series_.empty()) return "no line yet";
  return fmt::format("stopped at step {}", last_step());
}

RunLog::Confusion RunLog::confusion() const {
  Confusion result;
  const std::string path = folder_ + "/confusion.csv";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return result;
  CsvFile table = CsvFile::read(path);
  if (table.names() == std::vector<std::string>{"true class", "predicted class", "samples"})
    fail(ExitCode::kUsage, "report", {.file = path},
         "has a line for each pair of classes, which are too many for a figure");
  result.classes.assign(table.names().begin() + 1, table.names().end());
  while (table.next()) {
    std::vector<double> row;
    for (std::size_t c = 1; c < table.names().size(); ++c) row.push_back(table.number(c));
    result.counts.push_back(std::move(row));
  }
  return result;
}

}  // namespace starling
