#include "apps/doctor/flight_record.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "core/file_io.h"

namespace starling {
namespace {

const std::map<std::string, FlightEvent, std::less<>>& flight_events() {
  static const std::map<std::string, FlightEvent, std::less<>> events = [] {
    std::map<std::string, FlightEvent, std::less<>> all;
    for (int i = 0; i <= static_cast<int>(kLastFlightEvent); ++i) {
      const auto event = static_cast<FlightEvent>(i);
      all.emplace(event_name(event), event);
    }
    return all;
  }();
  return events;
}

/// An integer, limited so that differences cannot overflow.
std::int64_t whole(const nlohmann::json& line, const char* key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const nlohmann::json& value = line.at(key);
  if (!value.is_number_integer() || value < -kMost || value > kMost) throw std::out_of_range(key);
  return value.get<std::int64_t>();
}
std::int64_t whole(const nlohmann::json& line, const char* key, std::int64_t otherwise) {
  return line.contains(key) ? whole(line, key) : otherwise;
}

RecordedEvent event_of(const nlohmann::json& line) {
  RecordedEvent event;
  event.number = whole(line, "n");
  event.us = whole(line, "us");
  event.event = flight_events().at(line.at("event").get<std::string>());
  event.place.step = whole(line, "step", -1);
  event.place.bucket = line.value("bucket", -1);
  event.place.round = whole(line, "round", -1);
  event.place.lane = line.value("lane", 0);
  event.ranks = line.value("ranks", std::vector<int>{});
  event.rank_count = whole(line, "of", static_cast<std::int64_t>(event.ranks.size()));
  event.what = line.value("what", std::string());
  return event;
}

/// N of "rank-N.jsonl"; -1 for other names.
int rank_of_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kBegin = "rank-", kEnd = ".jsonl";
  if (name.size() <= kBegin.size() + kEnd.size() || name.rfind(kBegin, 0) != 0) return -1;
  const char* last = name.data() + name.size() - kEnd.size();
  int rank = -1;
  const auto [at, error] = std::from_chars(name.data() + kBegin.size(), last, rank);
  return error == std::errc() && at == last && last == kEnd ? rank : -1;
}

}  // namespace

FlightRecord read_flight_record(const std::string& path) {
  if (const RegularFile there(path); !there.fault().empty()) {
    fail(ExitCode::kUsage, "doctor", {.file = path}, "cannot be read: {}", there.fault());
  }
  std::ifstream file(path);
  FlightRecord record;
  std::string text;
  std::int64_t number = 0;
  bool ended = false;
  const auto damaged = [&](const std::string& why) {
    fail(ExitCode::kUsage, "doctor", {.file = path}, "line {}: {}; the file is damaged", number,
         why);
  };
  while (std::getline(file, text)) {
    ++number;
    if (ended) damaged("there is more after its end");
    try {
      const nlohmann::json line = nlohmann::json::parse(text);
      if (number == 1) {
        if (line.at("format").get<int>() != 1) damaged("a format that this version does not know");
        line.at("rank").get_to(record.rank);
        line.at("ranks").get_to(record.ranks);
        line.at("host").get_to(record.host);
        line.at("process").get_to(record.process);
        record.us = whole(line, "us");
        record.start = whole(line, "begun", 0);
        line.at("reason").get_to(record.reason);
        line.at("exit").get_to(record.exit);
        record.step = whole(line, "step");
        line.at("text").get_to(record.text);
        if (record.ranks < 1 || record.ranks > 1'000'000 || record.rank < 0 ||
            record.rank >= record.ranks)
          damaged(fmt::format("rank {} of {}", record.rank, record.ranks));
      } else if (line.contains("end")) {
        ended = true;
        if (line.at("end").get<std::size_t>() != record.events.size())
          damaged(fmt::format("{} events are here", record.events.size()));
      } else {
        record.events.push_back(event_of(line));
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      damaged("it is not a line of a flight record");
    }
  }
  if (!ended) damaged("the record breaks off after it");
  return record;
}

FlightRecords read_flight_records(const std::string& run) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(run, error))
    fail(ExitCode::kUsage, "doctor", "{}: is no folder; give the output folder of a run", run);
  FlightRecords records;
  fs::path folder = run;
  for (const char* inner : {"flight", "flight.before"}) {
    if (!fs::is_directory(fs::path(run) / inner, error)) continue;
    folder = fs::path(run) / inner;
    records.not_newest = folder.filename() != "flight";
    break;
  }
  std::vector<FlightRecord> whole;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const int rank = rank_of_file(entry.path());
    if (rank < 0) continue;
    try {
      whole.push_back(read_flight_record(entry.path().string()));
      if (whole.back().rank != rank) {
        whole.pop_back();
        fail(ExitCode::kUsage, "doctor", {.file = entry.path().string()},
             "holds another rank's record; put every file where it belongs");
      }
    } catch (const Error& bad) {
      records.damaged.push_back(bad);
      records.broken.push_back(rank);
    }
  }
  if (whole.empty()) {
    if (!records.damaged.empty()) throw Error(records.damaged.front());
    fail(ExitCode::kUsage, "doctor",
         "{}: no rank has left a flight record here; they are written when a run fails, and by a "
         "rank that gets SIGQUIT",
         run);
  }
  for (const FlightRecord& record : whole) {
    records.start = std::max(records.start, record.start);
    records.last = std::max(records.last, record.us);
  }
  std::erase_if(whole, [&](const FlightRecord& record) {
    if (record.start == records.start) return false;
    records.earlier.push_back(record.rank);
    return true;
  });
  std::ranges::sort(records.earlier);
  const int ranks = whole.front().ranks;
  for (const FlightRecord& record : whole) {
    if (record.ranks != ranks) {
      fail(ExitCode::kUsage, "doctor",
           "{}: rank {} is one of {}, rank {} one of {}; these records are not of one run",
           folder.string(), whole.front().rank, ranks, record.rank, record.ranks);
    }
  }
  std::ranges::sort(records.damaged, [](const Error& a, const Error& b) {
    return a.parts().where.file < b.parts().where.file;
  });
  records.by_rank.resize(static_cast<std::size_t>(ranks));
  for (FlightRecord& record : whole)
    records.by_rank[static_cast<std::size_t>(record.rank)] = std::move(record);
  return records;
}

}  // namespace starling
