#include <doctest/doctest.h>

#include <unistd.h>
#include <array>
#include <barrier>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/flight_recorder.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"

using namespace starling;
using nlohmann::json;

namespace {

/// A recorder that writes to a folder of its own.
struct RecorderInFolder {
  RecorderInFolder() { recorder->open(2, 4, "a\"host", folder / "flight"); }
  std::vector<json> lines() const { return test::json_lines(folder.read("flight/rank-2.jsonl")); }
  test::Folder folder;
  std::unique_ptr<FlightRecorder> recorder = std::make_unique<FlightRecorder>();
};

}  // namespace

TEST_CASE("a flight record has its header, the events in order, and its end") {
  RecorderInFolder in;
  FlightRecorder& recorder = *in.recorder;
  recorder.note(FlightEvent::kStep, {.step = 7});
  const std::array peers{0, 3};
  recorder.note(FlightEvent::kStart, {.step = 7, .bucket = 1, .round = 6, .lane = 1}, peers);
  recorder.note(FlightEvent::kCall, {.round = 12}, "a broadcast from rank 1234567");
  CHECK(recorder.write(FlightRecorder::Reason::kAsked, 0, "it \\ says\n\"so\""));
  const std::vector<json> lines = in.lines();
  REQUIRE(lines.size() == 5);
  CHECK(lines[0]["rank"] == 2);
  CHECK(lines[0]["ranks"] == 4);
  CHECK(lines[0]["host"] == "a\"host");
  CHECK(lines[0]["reason"] == "asked");
  CHECK(lines[0]["step"] == 7);
  CHECK(lines[0]["text"] == "it \\ says\n\"so\"");
  CHECK(lines[0]["process"] == ::getpid());
  CHECK(lines[1] == json{{"n", 0}, {"us", lines[1]["us"]}, {"event", "step"}, {"step", 7}});
  CHECK(lines[2] == json{{"n", 1},
                         {"us", lines[2]["us"]},
                         {"event", "start"},
                         {"step", 7},
                         {"bucket", 1},
                         {"round", 6},
                         {"lane", 1},
                         {"ranks", {0, 3}}});
  CHECK(lines[3]["what"] ==
        std::string("a broadcast from rank 1234567").substr(0, FlightRecorder::kText));
  CHECK(lines[4] == json{{"end", 3}});
  // Of the wall clock, within a minute of the header's.
  CHECK(lines[1]["us"].get<std::int64_t>() <= lines[2]["us"].get<std::int64_t>());
  CHECK(lines[0]["us"].get<std::int64_t>() - lines[1]["us"].get<std::int64_t>() < 60'000'000);
}

TEST_CASE("a flight recorder keeps the last 1,000 events of all threads, and counts those before") {
  RecorderInFolder in;
  std::vector<std::thread> threads;
  // a thread that the system stops in the middle of an event must not be passed by a thousand
  // others
  std::barrier together(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5000; ++i) {
        if (i % 100 == 0) together.arrive_and_wait();
        in.recorder->note(FlightEvent::kReady, {.step = i, .bucket = t});
      }
    });
  }
  // beside them
  for (int i = 0; i < 20; ++i) CHECK(in.recorder->write(FlightRecorder::Reason::kAsked, 0, ""));
  for (std::thread& thread : threads) thread.join();
  CHECK(in.recorder->write(FlightRecorder::Reason::kEnd, 0, ""));
  const std::vector<json> lines = in.lines();
  REQUIRE(lines.size() == 1002);
  std::vector<std::int64_t> last(4, -1);
  for (std::size_t i = 1; i <= 1000; ++i) {
    CHECK(lines[i]["n"] == 19'000 + static_cast<int>(i) - 1);
    std::int64_t& before = last[lines[i]["bucket"].get<std::size_t>()];
    CHECK(lines[i]["step"].get<std::int64_t>() > before);  // a thread's own are in its order
    before = lines[i]["step"];
  }
}

TEST_CASE("of more ranks than it has room for an event keeps the first and their number") {
  RecorderInFolder in;
  const std::vector<int> peers{0, 1, 3, 4, 5, 6, 7, 8};
  in.recorder->note(FlightEvent::kWait, {.step = 1}, peers);
  CHECK(in.recorder->write(FlightRecorder::Reason::kAsked, 0, ""));
  const std::vector<json> lines = in.lines();
  CHECK(lines.at(1)["ranks"] == json{0, 1, 3, 4, 5, 6});
  CHECK(lines.at(1)["of"] == 8);
}

TEST_CASE("what a rank failed of first stays in its record") {
  RecorderInFolder in;
  CHECK(in.recorder->write(FlightRecorder::Reason::kAsked, 0, "asked"));
  CHECK(in.recorder->write(FlightRecorder::Reason::kError, 3, "the cause"));
  CHECK_FALSE(in.recorder->write(FlightRecorder::Reason::kOther, 3, "its consequence"));
  CHECK_FALSE(in.recorder->write(FlightRecorder::Reason::kAsked, 0, "too late"));
  CHECK(in.lines()[0]["text"] == "the cause");
  CHECK(in.lines()[0]["exit"] == 3);
}

TEST_CASE("a recorder that is off, or has no folder yet, writes nothing") {
  FlightRecorder closed;
  CHECK_FALSE(closed.write(FlightRecorder::Reason::kError, 1, ""));
  RecorderInFolder in;
  in.recorder->switch_off();
  in.recorder->note(FlightEvent::kStep, {.step = 1});
  CHECK(in.recorder->step() == -1);
  CHECK_FALSE(in.recorder->write(FlightRecorder::Reason::kError, 1, ""));
  CHECK(in.folder.files() == 0);
}

TEST_CASE("a recorder makes its folder, but none in place of one that was moved") {
  const test::Folder folder;
  const std::string run = folder / "run";
  std::filesystem::create_directory(run);
  const auto recorder = std::make_unique<FlightRecorder>(),
             elsewhere = std::make_unique<FlightRecorder>();
  recorder->open(0, 1, "host", run + "/flight");
  elsewhere->open(0, 1, "host", folder / "other/run/flight");
  CHECK(elsewhere->write(FlightRecorder::Reason::kAsked, 0, ""));
  CHECK(recorder->write(FlightRecorder::Reason::kAsked, 0, ""));
  std::filesystem::rename(run, folder / "moved");
  CHECK_FALSE(recorder->write(FlightRecorder::Reason::kAsked, 0, ""));
  CHECK_FALSE(std::filesystem::exists(run));
}
