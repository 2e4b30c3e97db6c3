#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "apps/training/output/event_file.h"
#include "apps/training/output/metrics.h"
#include "apps/training/state/checkpoint.h"
#include "core/text.h"
#include "tests/apps/data_test_support.h"
#include "tests/support/rows.h"

using namespace starling;
using namespace starling::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::set<std::int64_t> steps_of(const std::string& path) {
  std::set<std::int64_t> steps;
  for (const json& line : json_lines(read_text(path)))
    steps.insert(line.at("step").get<std::int64_t>());
  return steps;
}

MetricsLine line_at(std::int64_t step) {
  return {.step = step, .loss = 1.0 / static_cast<double>(step)};
}

std::uint64_t number_at(const std::string& bytes, std::size_t at, int size) {
  std::uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i)
    value = (value << 8) | static_cast<unsigned char>(bytes.at(at + static_cast<std::size_t>(i)));
  return value;
}

std::uint64_t varint(const std::string& bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

/// The fields of a protocol buffer message: varints and fixed numbers as numbers, the rest as
/// bytes.
struct Message {
  std::map<int, std::uint64_t> numbers;
  std::map<int, std::string> bytes;
  explicit Message(const std::string& data) {
    for (std::size_t at = 0; at < data.size();) {
      const std::uint64_t tag = varint(data, at);
      const int field = static_cast<int>(tag >> 3), type = static_cast<int>(tag & 7);
      if (type == 0) {
        numbers[field] = varint(data, at);
      } else if (type == 2) {
        const std::uint64_t size = varint(data, at);
        bytes[field] = data.substr(at, size);
        at += size;
      } else {
        REQUIRE((type == 1 || type == 5));
        numbers[field] = number_at(data, at, type == 1 ? 8 : 4);
        at += type == 1 ? 8 : 4;
      }
    }
  }
};

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents."))
      files.push_back(entry.path().string());
  }
  return files;
}

/// The payloads of a TFRecord file, its lengths and sums checked.
std::vector<std::string> records_of(const std::string& path) {
  const std::string bytes = read_text(path);
  const auto sum = [](const std::string& data) {
    const std::uint64_t crc = crc32c(data);
    return ((((crc << 32) | crc) >> 15) + 0xa282ead8u) & 0xffffffffu;
  };
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t size = number_at(bytes, at, 8);
    REQUIRE(number_at(bytes, at + 8, 4) == sum(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, size));
    REQUIRE(number_at(bytes, at + 12 + size, 4) == sum(records.back()));
    at += size + 16;
  }
  return records;
}

}  // namespace

TEST_CASE("apps/metrics: CRC-32C known answers") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c("") == 0u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("apps/metrics: lines have the documented keys, only those set, and exact numbers") {
  const Folder folder;
  const MetricsLine line{.step = 12,
                         .epoch = 0.1,
                         .loss = 1.0 / 3.0,
                         .lr = 1e-3,
                         .samples_per_second = 812.5,
                         .step_ms = std::nextafter(0.1, 1.0),
                         .wait_ms = 5e-324},
      evaluation{.step = std::int64_t{1} << 53,
                 .test = {{"loss", 1e300}, {"accuracy", 1.0, true}, {"top5", 0.5, true}},
                 .consensus_distance = 0.25,
                 .bucket_consensus = {0.125, 1.0 / 7.0}};
  {
    MetricsWriter writer(folder / "new/folder", {.tensorboard = false}, 0);
    writer.write(line);
    writer.write(evaluation);
    CHECK(json_lines(read_text(folder / "new/folder/metrics.jsonl")).size() == 2);  // there at once
  }
  const auto lines = json_lines(read_text(folder / "new/folder/metrics.jsonl"));
  CHECK(lines[0] == json{{"step", 12},
                         {"epoch", 0.1},
                         {"loss", 1.0 / 3.0},
                         {"lr", 1e-3},
                         {"samples_per_second", 812.5},
                         {"images_per_second", 812.5},
                         {"step_ms", std::nextafter(0.1, 1.0)},
                         {"wait_ms", 5e-324}});
  CHECK(lines[1] == json{{"step", std::int64_t{1} << 53},
                         {"epoch", 0.0},
                         {"test_loss", 1e300},
                         {"test_accuracy", 1.0},
                         {"test_top5", 0.5},
                         {"consensus_distance", 0.25},
                         {"consensus_distance_per_bucket", {0.125, 1.0 / 7.0}}});
  CHECK(event_files(folder / "new/folder").empty());
}

TEST_CASE("apps/metrics: numbers that JSON does not have become null") {
  const Folder folder;
  MetricsLine line = line_at(1);
  line.loss = std::numeric_limits<double>::quiet_NaN();
  line.lr = -std::numeric_limits<double>::infinity();
  line.bucket_consensus = {1.0, std::numeric_limits<double>::infinity()};
  MetricsWriter(folder.path(), {.tensorboard = true}, 0).write(line);
  const auto lines = json_lines(read_text(folder / "metrics.jsonl"));
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["loss"].is_null());
  CHECK(lines[0]["lr"].is_null());
  CHECK(lines[0]["consensus_distance_per_bucket"][1].is_null());
}

TEST_CASE("apps/metrics: a resumed run goes on after its step") {
  const Folder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsWriter writer(folder.path(), {.tensorboard = false}, 0);
    for (std::int64_t step = 10; step <= 100; step += 10) writer.write(line_at(step));
  }
  const std::string whole = read_text(path);
  MetricsWriter(folder.path(), {.tensorboard = false}, 100);
  CHECK(read_text(path) == whole);
  MetricsWriter(folder.path(), {.tensorboard = false}, 60).write(line_at(70));
  CHECK(steps_of(path) == std::set<std::int64_t>{10, 20, 30, 40, 50, 60, 70});
  CHECK(json_lines(read_text(path)).size() == 7);
  CHECK(whole.starts_with(read_text(path).substr(0, whole.find("\"step\":70"))));

  // Torn and foreign lines go; a line without its end is torn even if it parses.
  write_bytes(path, [] {
    const std::string text =
        "{\"step\":1}\n{\"step\":2,\"lo\n[3]\n\n{\"step\":\"4\"}\n{\"step\":5}\n{\"step\":6}";
    return Bytes(text.begin(), text.end());
  }());
  MetricsWriter(folder.path(), {.tensorboard = false}, 50);
  CHECK(read_text(path) == "{\"step\":1}\n{\"step\":5}\n");

  MetricsWriter(folder.path(), {.tensorboard = false}, 0);
  CHECK(read_text(path) == "");
}

TEST_CASE("apps/metrics: TensorBoard's event file") {
  const Folder folder;
  MetricsWriter(folder.path(), {.tensorboard = true}, 200)
      .write({.step = 300,
              .loss = 0.5,
              .lr = 0.25,
              .samples_per_second = 100.0,
              .wait_ms = 2.0,
              .test = {{"loss", 3.0}, {"accuracy", 0.75, true}},
              .consensus_distance = 0.125});
  const auto files = event_files(folder.path());
  REQUIRE(files.size() == 1);
  const auto records = records_of(files[0]);
  REQUIRE(records.size() == 10);
  const Message version(records[0]), start(records[1]);
  CHECK(version.bytes.at(3) == "brain.Event:2");
  CHECK(start.numbers.at(2) == 201);
  CHECK(Message(start.bytes.at(7)).numbers.at(1) == 1);
  std::map<std::string, float> scalars;
  for (std::size_t i = 2; i < records.size(); ++i) {
    const Message event(records[i]);
    CHECK(event.numbers.at(2) == 300);
    double wall_time;
    std::memcpy(&wall_time, &event.numbers.at(1), 8);
    CHECK(wall_time > 1.6e9);
    const Message value(Message(event.bytes.at(5)).bytes.at(1));
    const auto bits = static_cast<std::uint32_t>(value.numbers.at(2));
    std::memcpy(&scalars[value.bytes.at(1)], &bits, 4);
  }
  CHECK(scalars == std::map<std::string, float>{{"loss", 0.5f},
                                                {"learning_rate", 0.25f},
                                                {"samples_per_second", 100.0f},
                                                {"images_per_second", 100.0f},
                                                {"wait_ms", 2.0f},
                                                {"test/loss", 3.0f},
                                                {"test/accuracy", 0.75f},
                                                {"consensus_distance", 0.125f}});
}

TEST_CASE("apps/metrics: Prometheus' file has the newest numbers, and is replaced whole") {
  const Folder folder;
  const std::string file = folder / "starling.prom";
  MetricsWriter writer(folder / "a \"run\"", {.tensorboard = false, .prometheus = file}, 0);
  writer.write(
      {.step = 10, .epoch = 0.5, .loss = 2.5, .step_ms = 20.0, .rank_wait_ms = {1.0, 3.0}});
  writer.write({.step = 12, .loss = std::nan("")});
  const std::string text = read_text(file);
  const std::string run = "run=\"" + (folder / "a \\\"run\\\"") + "\"";
  CHECK(text.find("# TYPE starling_step gauge\nstarling_step{" + run + "} 12\n") !=
        std::string::npos);
  CHECK(text.find("starling_step_seconds{" + run + "} 0.02\n") != std::string::npos);
  CHECK(text.find("starling_loss{" + run + "} NaN\n") != std::string::npos);
  CHECK(text.find("starling_rank_wait_seconds{" + run + ",rank=\"1\"} 0.003\n") !=
        std::string::npos);
  CHECK(text.find("2.5") == std::string::npos);
}

TEST_CASE("apps/metrics: Prometheus can read every name, and a folder that goes ends nothing") {
  const Folder folder;
  std::filesystem::create_directory(folder / "gone");
  const std::string file = folder / "gone/starling.prom";
  const MetricsLine line{
      .step = 1, .loss = 2.0, .test = {{"f1-macro é", 0.5, true}, {"f1 macro é", 0.25, true}}};
  MetricsWriter writer(folder / "caf\xe9\n\\", {.tensorboard = false, .prometheus = file}, 0);
  writer.write(line);
  const std::string text = read_text(file);
  CHECK(is_utf8(text));
  const std::regex comment("# TYPE [a-zA-Z_:][a-zA-Z0-9_:]* gauge"),
      gauge(R"re([a-zA-Z_:][a-zA-Z0-9_:]*\{([a-z]+="([^"\\]|\\["\\n])*",?)*\} [0-9.e+-]+)re");
  std::set<std::string> seen;
  for (const std::string& one : lines_of(text)) {
    CAPTURE(one);
    CHECK(std::regex_match(one, one.starts_with("#") ? comment : gauge));
    CHECK(seen.insert(one).second);
  }
  CHECK(text.find(R"(,field="test_f1-macro é"} 0.5)") != std::string::npos);
  CHECK(text.find(R"(,field="test_f1 macro é"} 0.25)") != std::string::npos);
  CHECK(text.find(R"(caf\\xe9)") != std::string::npos);

  std::filesystem::remove_all(folder / "gone");
  writer.write({.step = 2, .loss = 1.0});
  writer.write({.step = 3, .loss = 1.0});
  std::filesystem::create_directory(folder / "gone");
  writer.write({.step = 4, .loss = 1.0});
  CHECK(contains(read_text(file), "starling_step{"));
  CHECK(contains(read_text(file), "} 4\n"));
}

TEST_CASE(
    "apps/metrics: an event file is after all others of its folder, whatever the clock says") {
  const Folder folder;
  const auto moments = [](const std::string& path) {
    std::vector<double> all;
    for (const std::string& record : records_of(path)) {
      const std::uint64_t bits = Message(record).numbers.at(1);
      all.push_back(0.0);
      std::memcpy(&all.back(), &bits, 8);
    }
    return all;
  };
  // As a clock has it that is ahead by years: a name, and a record that is later by an hour.
  constexpr double kAhead = 4e9;
  std::string record("\x09", 1);
  const double late = kAhead + 3600.5;
  record.append(reinterpret_cast<const char*>(&late), 8);
  const std::string text = tfrecord(record);
  const auto write = [&](const std::string& name, std::string bytes) {
    write_bytes(folder / name, Bytes(bytes.begin(), bytes.end()));
  };
  write("events.out.tfevents.4000000000.host.9", text + text.substr(0, 7));
  write("events.out.tfevents.x.host.9", "no record");
  write("events.out.tfevents.99999999999999999999.host.9", "\x01");
  double before = late;
  for (int start = 0; start < 2; ++start) {
    const auto old = event_files(folder.path());
    {
      EventFile file(folder.path(), 1);
      for (int step = 1; step < 4; ++step) file.scalar("loss", step, 1.0);
      file.flush();
    }
    for (const std::string& path : event_files(folder.path())) {
      if (std::find(old.begin(), old.end(), path) != old.end()) continue;
      const double in_name = std::stod(fs::path(path).filename().string().substr(20));
      CHECK(in_name > before);
      const std::vector<double> all = moments(path);
      REQUIRE(all.size() == 5);
      CHECK(all[0] >= in_name);
      CHECK(std::is_sorted(all.begin(), all.end()));
      before = all.back();
    }
  }
}

TEST_CASE("apps/output: a moved file is begun anew, but not in a folder that took its place") {
  const Folder folder;
  const std::string run = folder / "run";
  fs::create_directory(run);
  OutputFile file(run + "/lines", false);
  file.append("1\n");
  fs::rename(run + "/lines", run + "/lines.1");
  file.append("2\n");
  CHECK(read_text(run + "/lines") == "2\n");
  fs::rename(run, folder / "moved");
  const std::string told = run + ": the folder was moved or removed while the run wrote in it";
  const auto error = [&] { return error_of(ExitCode::kOutput, [&] { file.append("3\n"); }); };
  CHECK(contains(error(), told));
  CHECK(contains(error_of(ExitCode::kOutput, [&] { CheckpointFolder(run).begin(1); }), told));
  fs::create_directory(run);
  CHECK(contains(error(), told));
  CHECK(fs::is_empty(run));
}

TEST_CASE("apps/metrics: a full disk is an output error that names the file") {
  if (!std::filesystem::exists("/dev/full")) return;  // Linux has it
  const Folder folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  const auto error = error_of(ExitCode::kOutput, [&] {
    MetricsWriter writer(folder.path(), {.tensorboard = false}, 0);
    writer.write(line_at(1));
  });
  CHECK(contains(error, folder / "metrics.jsonl"));
  CHECK(contains(error, "No space left"));
  CHECK(contains(error, "--output"));

  write_bytes(folder / "file", {1});
  CHECK(fails(ExitCode::kOutput, folder / "file",
              [&] { MetricsWriter(folder / "file/below", {.tensorboard = false}, 0); }));
}
