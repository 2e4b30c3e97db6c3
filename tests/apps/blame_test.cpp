#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "apps/doctor/flight_record.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

using namespace starling;
using test::contains;

// Records as ranks would have left them, one thing wrong in each.

namespace {

RecordedEvent event_at(std::int64_t us, FlightEvent kind, FlightPlace place = {},
                       std::vector<int> ranks = {}, std::string what = {}) {
  const auto count = static_cast<std::int64_t>(ranks.size());
  return {0, us, kind, place, std::move(ranks), count, std::move(what)};
}

/// Pairs of a ring of 4: with step t, a rank mixes with the one beside it, to the right in even
/// steps for even ranks.
int partner_of(int rank, std::int64_t step) {
  return ((rank + step) % 2 == 0 ? rank + 1 : rank + 3) % 4;
}

/// Four ranks that have done `steps` steps, one event a millisecond.
FlightRecords four_ranks(int steps) {
  FlightRecords records;
  for (int rank = 0; rank < 4; ++rank) {
    FlightRecord record{.rank = rank,
                        .ranks = 4,
                        .host = "a",
                        .reason = "error",
                        .us = 10'000'000,
                        .step = steps - 1,
                        .exit = 3};
    for (int t = 0; t < steps; ++t) {
      record.events.push_back(event_at(t * 1000, FlightEvent::kStep, {.step = t}));
      if (t > 0) {
        record.events.push_back(event_at(t * 1000 + 200, FlightEvent::kWait, {t - 1, 0, t - 1},
                                         {partner_of(rank, t - 1)}));
        record.events.push_back(event_at(t * 1000 + 300, FlightEvent::kWaited, {t - 1, 0, t - 1}));
      }
      record.events.push_back(event_at(t * 1000 + 400, FlightEvent::kPublished, {t, 0, t}));
      record.events.push_back(
          event_at(t * 1000 + 500, FlightEvent::kStart, {t, 0, t}, {partner_of(rank, t)}));
    }
    for (std::size_t i = 0; i < record.events.size(); ++i)
      record.events[i].number = static_cast<std::int64_t>(i);
    records.by_rank.push_back(std::move(record));
  }
  return records;
}

void add_event(FlightRecords& records, int rank, const RecordedEvent& more) {
  FlightRecord& record = *records.by_rank[static_cast<std::size_t>(rank)];
  record.events.push_back(more);
  record.events.back().number = static_cast<std::int64_t>(record.events.size()) - 1;
  if (more.event == FlightEvent::kStep) record.step = more.place.step;
}
/// The rank waits for its partner of step t from us on, and does not come out.
void waits_in(FlightRecords& records, int rank, int t, std::int64_t us) {
  add_event(records, rank, event_at(us, FlightEvent::kStep, {.step = t + 1}));
  add_event(records, rank,
            event_at(us + 100, FlightEvent::kWait, {t, 0, t}, {partner_of(rank, t)}));
}
void starts_exchange(FlightRecords& records, int rank, int t, std::int64_t us) {
  add_event(records, rank, event_at(us, FlightEvent::kStart, {t, 0, t}, {partner_of(rank, t)}));
}

/// What the rank began in step t was ready and no more.
void begins_nothing(FlightRecords& records, int rank, int t) {
  for (auto& e : records.by_rank[static_cast<std::size_t>(rank)]->events) {
    if (e.event == FlightEvent::kStart && e.place.step == t) e.event = FlightEvent::kReady;
  }
}
/// What is said of the records, in which all of these stand.
std::string blamed(const FlightRecords& records, std::initializer_list<const char*> parts) {
  std::string text = blame(records);
  for (const char* part : parts) CHECK(contains(text, part));
  return text;
}

}  // namespace

TEST_CASE("blame: a rank that stands still is the cause, through another that waits for it") {
  FlightRecords records = four_ranks(3);
  add_event(records, 2, event_at(3000, FlightEvent::kStep, {.step = 3}));  // and nothing after it
  for (const int rank : {0, 1, 3})
    add_event(records, rank, event_at(3000, FlightEvent::kStep, {.step = 3}));
  for (const int rank : {0, 1, 3}) {
    add_event(records, rank, event_at(3050, FlightEvent::kWait, {2, 0, 2}, {partner_of(rank, 2)}));
    add_event(records, rank, event_at(3060, FlightEvent::kWaited, {2, 0, 2}));
    starts_exchange(records, rank, 3, 3100);
  }
  waits_in(records, 1, 3, 4'000'000);  // its partner is 2
  for (const int rank : {0, 3}) {
    add_event(records, rank, event_at(4'000'000, FlightEvent::kStep, {.step = 4}));
    starts_exchange(records, rank, 4, 4'000'200);
  }
  waits_in(records, 0, 4, 5'000'000);  // its partner is 1
  const std::string text = blamed(
      records,
      {"rank 1 waits for rank 2 since", "rank 0 waits for rank 1 since",
       "6 s before the last record (the exchange of step 3, bucket 0)",
       "cause: rank 2: in step 3 it is not waiting for another rank; its last event is \"step\"",
       "order: all ranks issued the same; rank 2 is in step 3, rank 0 in step 5"});
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
}

TEST_CASE("blame: what a rank does once the others have given up on it is no excuse") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 3, 2, 3'000);
  begins_nothing(records, 2, 2);
  add_event(records, 3, event_at(8'000'000, FlightEvent::kFound, {.round = 2}, {}, "stopped"));
  add_event(records, 3, event_at(8'000'000, FlightEvent::kTimeout, {2, 0, 2}, {2}));
  starts_exchange(records, 2, 2, 8'010'000);
  waits_in(records, 2, 2, 8'020'000);
  starts_exchange(records, 2, 3, 8'030'000);
  add_event(records, 2, event_at(8'040'000, FlightEvent::kWait, {3, 0, 3}, {1}));
  blamed(records,
         {"waits: rank 3 waits for rank 2 since", "cause: rank 2: stopped, as rank 3 saw; in step",
          "its last event is \"ready of bucket 0\""});
}

TEST_CASE("blame: a rank that was stopped in a wait for what others have done") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 2, 1, 2'900);
  for (const int rank : {0, 1, 3}) {
    starts_exchange(records, rank, 3, 3'000);
    waits_in(records, rank, 3, 3'100);
  }
  blamed(records, {"cause: rank 2: in step 2 it waits since",
                   "for the exchange of step 1, bucket 0, which all other ranks have started"});
}

TEST_CASE("blame: a rank that was stopped with its exchange begun") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 3, 2, 3'000);
  add_event(records, 3, event_at(8'000'000, FlightEvent::kTimeout, {2, 0, 2}, {2}));
  add_event(records, 2, event_at(3'000, FlightEvent::kStep, {.step = 3}));
  blamed(records, {"waits: rank 3 waits for rank 2 since",
                   "cause: rank 2: in step 3 it is not waiting for another rank"});
}

TEST_CASE("blame: of a rank without a record it is said, and that it is probably the cause") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 1, 2, 3'000);
  waits_in(records, 3, 2, 3'000);
  records.by_rank[2].reset();
  REQUIRE(partner_of(3, 2) == 2);
  blamed(records,
         {"rank 3 waits for rank 2", "cause: rank 2 left no record: probably killed or stopped",
          "no record of rank 2"});
}

TEST_CASE("blame: a rank whose record is damaged is not said to be gone") {
  FlightRecords records = four_ranks(3);
  records.by_rank[2].reset();
  records.broken = {2};
  SUBCASE("nobody waits") {}
  SUBCASE("a rank waits for it") { waits_in(records, 3, 2, 3'000); }
  blamed(records, {"cause: unknown: the record of rank 2 is damaged", "no record of rank 2"});
}

TEST_CASE(
    "blame: a loss that others noticed, a crash and an error are the cause, not what followed") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 3, 2, 3'000);
  SUBCASE("lost") {
    records.by_rank[2].reset();
    add_event(records, 0, event_at(4'000, FlightEvent::kLost, {}, {2}));
    CHECK(contains(
        blame(records),
        "cause: rank 2 ended or went silent, as rank 0 noticed, and left no record: killed"));
  }
  SUBCASE("crash") {
    add_event(records, 0, event_at(4'000, FlightEvent::kLost, {}, {2}));
    records.by_rank[2]->reason = "crash";
    records.by_rank[2]->us = 3'500;
    records.by_rank[2]->text = "[crash] SIGSEGV";
    blamed(records, {"cause: rank 2 on host a crashed at", ": [crash] SIGSEGV"});
  }
  SUBCASE("the first error of two") {
    for (const int rank : {1, 2}) {
      records.by_rank[static_cast<std::size_t>(rank)]->exit = 5;
      records.by_rank[static_cast<std::size_t>(rank)]->us = rank == 2 ? 3'000 : 3'600;
      records.by_rank[static_cast<std::size_t>(rank)]->text = fmt::format("disk {} is full", rank);
    }
    blamed(records, {"cause: rank 2 on host a failed at", "disk 2 is full"});
  }
}

TEST_CASE("blame: a cut cable is the network's, not that of the hosts at its ends") {
  FlightRecords records = four_ranks(3);
  for (int rank = 0; rank < 4; ++rank)
    records.by_rank[static_cast<std::size_t>(rank)]->host = rank < 2 ? "a" : "b";
  const auto loses = [&](int rank, int other) {
    add_event(records, rank, event_at(4'000'000 + rank, FlightEvent::kLost, {}, {other}));
  };
  loses(0, 2);
  SUBCASE("two hosts") {
    loses(2, 0);
    blamed(records, {"cause: the network between hosts a and b: ranks 0 and 2 lost contact with "
                     "ranks that kept running"});
    loses(3, 2);  // a process of its own host
    CHECK(blame(records).find("network") == std::string::npos);
  }
  SUBCASE("three: the one at all ends") {
    records.by_rank[3]->host = "c";
    loses(2, 3);
    loses(3, 2);
    blamed(records, {"cause: the network between host b and the others: ranks 0, 2 and 3"});
  }
  SUBCASE("a host that was stopped is none") {
    loses(2, 0);
    add_event(records, 0, event_at(3'900'000, FlightEvent::kFound, {.round = 2}, {}, "stopped"));
    blamed(records, {"cause: ranks 0 and 2 ended or went silent"});
  }
  SUBCASE("nor is one that missed nobody") {
    blamed(records, {"cause: rank 2 ended or went silent, as rank 0 noticed"});
  }
}

TEST_CASE(
    "blame: a message that is lost between two that have begun is no fault of the one that others "
    "wait for") {
  FlightRecords records = four_ranks(3);
  REQUIRE(partner_of(0, 1) == 3);
  waits_in(records, 0, 1, 3'000);  // of step 1, which 3 has begun
  waits_in(records, 1, 2, 3'500);  // 0 has begun step 2, and does not come
  add_event(records, 0, event_at(3'000'000, FlightEvent::kLate, {1, 0, 1}, {3}));
  begins_nothing(records, 0, 2);
  add_event(records, 1, event_at(8'000'000, FlightEvent::kTimeout, {2, 0, 2}, {0}));
  const int other = partner_of(1, 2);
  SUBCASE("rank 3 has come through") {
    blamed(records, {fmt::format("rank 1 waits for rank {}", other).c_str(),
                     "rank 0 waits for rank 3", "cause: rank 3: "});
  }
  SUBCASE("rank 3 waits for it, too") {
    waits_in(records, 3, 1, 3'000);
    add_event(records, 3, event_at(3'000'000, FlightEvent::kLate, {1, 0, 1}, {0}));
    blamed(records,
           {"cause: ranks 0 and 3 wait for each other, although each has started its side: "
            "check the network between them"});
  }
}

TEST_CASE("blame: where ranks issued exchanges in another order, it says which") {
  FlightRecords records = four_ranks(3);
  const auto issue = [&](int rank, int bucket, std::int64_t us) {
    add_event(records, rank,
              event_at(us, FlightEvent::kStart, {3, bucket, 3}, {partner_of(rank, 3)}));
  };
  REQUIRE(partner_of(1, 3) == 2);
  issue(1, 0, 3'100);
  issue(1, 1, 3'200);
  issue(2, 1, 3'110);
  issue(2, 0, 3'210);
  // Their common exchange before was the one of step 1.
  blamed(records, {"order: ranks diverge at",
                   "after the exchange of step 1, bucket 0 rank 1 issued the exchange of step 3, "
                   "bucket 0 where rank 2 issued the exchange "
                   "of step 3, bucket 1"});
}

TEST_CASE("blame: two ranks that wait for each other in different things") {
  FlightRecords records = four_ranks(3);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == 2) continue;
    starts_exchange(records, rank, 3, 3'100);
    waits_in(records, rank, 3, 4'000);
  }
  add_event(records, 2, event_at(3'000, FlightEvent::kCall, {.round = 9}, {}, "a barrier"));
  blamed(
      records,
      {"cause: ranks 1 and 2 wait for each other, because they issued different operations",
       "rank 1 waits for the exchange of step 3, bucket 0 where rank 2 called a barrier (call 9)"});

  // Rank 2 gives up and writes its record, when rank 1 looks what it is at.
  add_event(records, 2, event_at(8'000'000, FlightEvent::kTimeout, {.round = 9}, {1}));
  add_event(records, 1,
            event_at(8'000'600, FlightEvent::kFound, {.round = 2}, {}, "waits for a disk"));
  add_event(records, 1, event_at(8'000'610, FlightEvent::kTimeout, {3, 0, 3}, {2}));
  CHECK(contains(
      blame(records),
      "cause: ranks 1 and 2 wait for each other, because they issued different operations"));
  // but before that it is a cause
  records.by_rank[1]->events[records.by_rank[1]->events.size() - 2].us = 7'999'000;
  CHECK(contains(blame(records), "cause: rank 2: waits for a disk, as rank 1 saw"));
}

TEST_CASE("blame: different collective calls of one number") {
  FlightRecords records = four_ranks(1);
  for (int rank = 0; rank < 4; ++rank)
    add_event(records, rank,
              event_at(3'000, FlightEvent::kCall, {.round = 9}, {},
                       rank == 3 ? "a barrier" : "a sum of numbers"));
  CHECK(contains(blame(records),
                 "rank 0 called a sum of numbers (call 9) where rank 3 called a barrier (call 9)"));
}

TEST_CASE("blame: a ring that begins in the midst of what the other has is lined up with it") {
  FlightRecords records = four_ranks(6);
  auto& events = records.by_rank[1]->events;
  events.erase(events.begin(), events.begin() + 12);
  CHECK(contains(blame(records), "order: all ranks issued the same"));
}

TEST_CASE("blame: a rank that waits for its data") {
  FlightRecords records = four_ranks(3);
  waits_in(records, 3, 2, 3'500);
  begins_nothing(records, 2, 2);
  add_event(records, 2, event_at(3'000, FlightEvent::kLoad));
  CHECK(contains(blame(records), "cause: rank 2: in step 2 it waits for its data loader since"));
}

TEST_CASE("blame: data that nobody has, with no rank waiting for another yet") {
  FlightRecords records = four_ranks(3);
  for (auto& record : records.by_rank) record->reason = "asked";
  add_event(records, 1, event_at(3'000, FlightEvent::kLoad));
  CHECK(contains(blame(records), "cause: rank 1: in step 2 it waits for its data loader since"));
}

TEST_CASE("blame: nothing wrong") {
  FlightRecords records = four_ranks(3);
  for (auto& record : records.by_rank) record->reason = "end";
  CHECK(blame(records) ==
        "waits: no rank waits for another\ncause: none, nothing went wrong\norder: all ranks "
        "issued the same, and are in step 2\n");
}

TEST_CASE("flight records: what is damaged is named, the rest is read") {
  const test::Folder made;
  const std::string folder = made.path();
  const auto write = [&](int rank, const std::function<std::string(std::string)>& change) {
    FlightRecorder recorder;
    recorder.open(rank, 3, "a", folder + "/flight");
    recorder.note(FlightEvent::kStep, {.step = 4});
    const std::vector<int> peers{0, 1};
    recorder.note(FlightEvent::kStart, {4, 0, 3}, peers);
    REQUIRE(recorder.write(FlightRecorder::Reason::kError, 3, "why"));
    if (!change) return;
    const std::string path = fmt::format("{}/flight/rank-{}.jsonl", folder, rank);
    const std::string text = test::read_text(path);
    std::ofstream(path, std::ios::trunc) << change(text);
  };
  write(0, {});
  write(1, {});
  const FlightRecords whole = read_flight_records(folder);
  REQUIRE(whole.by_rank.size() == 3);
  CHECK(whole.damaged.empty());
  REQUIRE(whole.by_rank[1]);
  CHECK_FALSE(whole.by_rank[2]);
  CHECK(whole.by_rank[1]->text == "why");
  REQUIRE(whole.by_rank[1]->events.size() == 2);
  CHECK(whole.by_rank[1]->events[1].ranks == std::vector<int>{0, 1});
  CHECK(whole.by_rank[1]->events[1].place.round == 3);
  const std::vector<std::pair<std::function<std::string(std::string)>, std::string>> faults{
      {[](std::string text) { return text.substr(0, text.size() / 2); }, "damaged"},
      {[](std::string text) { return text.substr(0, text.rfind("{\"end\"")); }, "breaks off"},
      {[](const std::string&) { return std::string(); }, "breaks off"},
      {[](std::string text) { return text.replace(text.find("start"), 5, "sta\1t"), text; },
       "line 3"},
      // A time of longer ago.
      {[](std::string text) { return text.insert(text.find("\"us\":") + 5, "-900"); },
       "line 1: it is not a line"},
      {[](std::string text) { return text.replace(text.find("\"format\":1"), 10, "\"format\":2"); },
       "does not know"},
      {[](std::string text) {
         return text.erase(text.find("{\"n\":0"), text.find("{\"n\":1") - text.find("{\"n\":0"));
       },
       "1 events"},
      {[](std::string text) { return text.replace(text.find("\"rank\":2"), 8, "\"rank\":1"); },
       "another rank's"}};
  for (const auto& [change, why] : faults) {
    write(2, change);
    const FlightRecords records = read_flight_records(folder);
    REQUIRE(records.damaged.size() == 1);
    CHECK(contains(records.damaged[0].what(), "rank-2.jsonl"));
    CHECK(contains(records.damaged[0].what(), why));
    CHECK_FALSE(records.by_rank[2]);
    CHECK(records.by_rank[1]);
    CHECK(records.broken == std::vector<int>{2});
  }
  // Nobody writes into the pipe, so that opening it would wait for ever.
  const std::string third = folder + "/flight/rank-2.jsonl";
  std::filesystem::remove(third);
  REQUIRE(::mkfifo(third.c_str(), 0600) == 0);
  const FlightRecords records = read_flight_records(folder);
  REQUIRE(records.damaged.size() == 1);
  CHECK(contains(records.damaged[0].what(), "rank-2.jsonl: cannot be read: it is a pipe"));
  CHECK(records.by_rank[0]);
  CHECK_THROWS_WITH_AS(read_flight_records(folder + "/none"), doctest::Contains("is no folder"),
                       Error);
  std::filesystem::create_directories(folder + "/empty");
  CHECK_THROWS_WITH_AS(read_flight_records(folder + "/empty"),
                       doctest::Contains("no rank has left a flight record"), Error);
}

TEST_CASE("flight records: of the newest start alone, and which that was") {
  const test::Folder made;
  const std::string folder = made.path();
  const auto write = [&](const char* place, int rank, int ranks, std::int64_t start) {
    FlightRecorder recorder;
    recorder.open(rank, ranks, "a", folder + "/" + place, start);
    recorder.note(FlightEvent::kStep, {.step = 4});
    REQUIRE(recorder.write(FlightRecorder::Reason::kError, 3, "why"));
  };
  // A start of three ranks, and a later one of two whose host could not take all the old files away
  const std::int64_t day = 86'400'000'000;
  for (const int rank : {0, 1, 2}) write("flight.before", rank, 3, 10 * day);
  FlightRecords records = read_flight_records(folder);
  CHECK(records.by_rank.size() == 3);
  CHECK(records.not_newest);
  CHECK(contains(start_text(records), "records of the run started 1970-01-1"));
  CHECK(contains(start_text(records), "; the newest start left no record"));
  write("flight", 0, 2, 20 * day);
  write("flight", 1, 2, 20 * day);
  for (const int rank : {2, 3}) write("flight", rank, 4, 11 * day);
  records = read_flight_records(folder);
  CHECK(records.by_rank.size() == 2);
  CHECK_FALSE(records.not_newest);
  CHECK(records.start == 20 * day);
  CHECK(records.earlier == std::vector<int>{2, 3});
  CHECK(contains(start_text(records), "records of the run started 1970-01-2"));
  CHECK(contains(start_text(records), "ignored, from earlier starts: ranks 2 and 3"));
}
