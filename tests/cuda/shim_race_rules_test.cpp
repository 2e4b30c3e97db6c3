#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "tests/cuda/race_script.h"
#include "tests/support/errors.h"

// What the race checker says of short records written by hand: one for each rule, and its neighbour
// that is right.
namespace starling::tests {
namespace {

using cuda::CopyKind;
using cuda::shim::Call;
using cuda::shim::check_communicators;
using cuda::shim::check_races;
using cuda::shim::Finding;
using Kind = cuda::shim::Finding::Kind;

using test::contains;

}  // namespace

TEST_CASE("cuda/race: two streams on the same bytes need an event between them") {
  for (const bool first_writes : {true, false}) {
    CAPTURE(first_writes);
    for (const bool joined : {true, false}) {
      CAPTURE(joined);
      RaceScript s;
      first_writes ? s.write(s.compute, "conv", 100, 64) : s.read(s.compute, "conv", 100, 64);
      if (joined) s.join(s.compute, s.update);
      s.write(s.update, "update", 160, 64);
      const std::vector<Finding> found = check_races(s.calls);
      REQUIRE(found.size() == (joined ? 0 : 1));
      if (joined) continue;
      CHECK(found[0].kind == Kind::kRace);
      CHECK(found[0].one == "conv");
      CHECK(found[0].other == "update");
      CHECK(s.calls[found[0].first].label == "conv");
      CHECK(s.calls[found[0].second].label == "update");
      CHECK(contains(found[0].text, first_writes ? "'conv' on stream compute writes 64 bytes"
                                                 : "'conv' on stream compute reads 64 bytes"));
      CHECK(contains(found[0].text, "'update' on stream update writes 64 bytes"));
    }
  }
}

TEST_CASE("cuda/race: reads do not race, nor neighbouring bytes, nor one stream with itself") {
  RaceScript s;
  s.read(s.compute, "a", 0, 64);
  s.read(s.update, "b", 32, 64);
  s.write(s.compute, "c", 200, 56);
  s.write(s.update, "d", 256, 64);
  s.write(s.compute, "e", 0, 0);
  s.write(s.communication, "f", 512, 64);
  s.read(s.communication, "g", 512, 64);
  s.write(s.communication, "h", 500, 100);
  CHECK(check_races(s.calls).empty());
}

TEST_CASE("cuda/race: what orders two accesses, and what does not") {
  struct Order {
    const char* what;
    std::size_t findings;
    void (*calls)(RaceScript& s);
  };
  const Order orders[] = {
      {"a third stream", 0,
       [](RaceScript& s) {
         s.write(s.compute, "a", 0, 64);
         s.join(s.compute, s.communication);
         s.join(s.communication, s.update);
         s.write(s.update, "b", 0, 64);
       }},
      {"the host waits and issues afterwards", 0,
       [](RaceScript& s) {
         const auto event = s.event();
         s.write(s.compute, "a", 0, 64);
         s.record(event, s.compute);
         s.host_wait(event);
         s.write(s.update, "b", 0, 64);
       }},
      {"the host sees that it is done and issues afterwards", 0,
       [](RaceScript& s) {
         const auto event = s.event();
         s.write(s.compute, "a", 0, 64);
         s.record(event, s.compute);
         s.done(event);
         s.write(s.update, "b", 0, 64);
       }},
      {"what was issued before the host waited, for nothing, is not ordered by it", 2,
       [](RaceScript& s) {
         const auto event = s.event();
         s.write(s.update, "b", 0, 64);
         s.host_wait(event);
         s.write(s.compute, "a", 0, 64);
       }},
      {"a recording that was made too early", 1,
       [](RaceScript& s) {
         const auto event = s.event();
         s.record(event, s.compute);
         s.write(s.compute, "a", 0, 64);
         s.wait(s.update, event);
         s.write(s.update, "b", 0, 64);
       }},
      {"recorded again, after the wait", 1,
       [](RaceScript& s) {
         const auto event = s.event();
         s.record(event, s.compute);
         s.wait(s.update, event);
         s.write(s.compute, "a", 0, 64);
         s.record(event, s.compute);
         s.write(s.update, "b", 0, 64);
       }},
      {"recorded again, before the wait", 0,
       [](RaceScript& s) {
         const auto event = s.event();
         s.record(event, s.compute);
         s.write(s.compute, "a", 0, 64);
         s.record(event, s.compute);
         s.wait(s.update, event);
         s.write(s.update, "b", 0, 64);
       }},
      {"NCCL's work counts from its group's end: a recording before it comes too early", 1,
       [](RaceScript& s) {
         s.group(true);
         s.receive(1, 1, 64, 64);
         s.join(s.communication, s.update);
         s.group(false);
         s.read(s.update, "update", 64, 64);
       }},
      {"two members of one group in one buffer", 1,
       [](RaceScript& s) {
         s.group(true);
         s.receive(1, 1, 64, 64);
         s.receive(1, 2, 100, 64);
         s.group(false);
       }},
  };
  for (const Order& order : orders) {
    CAPTURE(order.what);
    RaceScript s;
    order.calls(s);
    CHECK(check_races(s.calls).size() == order.findings);
  }
}

TEST_CASE("cuda/race: a wait for an event that was never recorded") {
  for (const bool host : {true, false}) {
    RaceScript s;
    const auto event = s.event();
    host ? s.host_wait(event) : s.wait(s.update, event);
    const std::vector<Finding> found = check_races(s.calls);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == Kind::kUnrecordedEvent);
    CHECK(contains(found[0].text, host ? "the host waits" : "stream update waits"));
  }
  RaceScript fine;  // whether it is done may be asked
  fine.done(fine.event());
  CHECK(check_races(fine.calls).empty());
}

TEST_CASE("cuda/race: the pool gives memory out again in the order of its stream") {
  for (const bool joined : {true, false}) {
    CAPTURE(joined);
    RaceScript s;
    s.take(s.compute, 0, 512);
    s.write(s.compute, "a", 0, 512);
    s.join(s.compute, s.communication);
    s.read(s.communication, "send", 0, 512);
    if (joined) s.join(s.communication, s.compute);
    s.give_back(s.compute, 0, 512);
    s.take(s.compute, 0, 512);
    s.write(s.compute, "b", 0, 512);
    const std::vector<Finding> found = check_races(s.calls);
    REQUIRE(found.size() == (joined ? 0 : 1));
    if (joined) continue;
    CHECK(found[0].kind == Kind::kReusedMemory);
    CHECK(found[0].one == "send");
    CHECK(found[0].other == "stream compute");
  }
}

TEST_CASE("cuda/race: an operation on memory that was given back") {
  RaceScript s;
  s.take(s.compute, 0, 512);
  s.write(s.compute, "a", 0, 512);
  s.give_back(s.compute, 0, 512);
  s.read(s.compute, "b", 128, 4);
  const std::vector<Finding> found = check_races(s.calls);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == Kind::kFreedMemory);
  CHECK(found[0].other == "b");
}

TEST_CASE("cuda/race: pinned memory is the host's again only after it has waited for the copy") {
  for (const auto direction : {CopyKind::kHostToDevice, CopyKind::kDeviceToHost}) {
    for (const bool waited : {true, false}) {
      CAPTURE(waited);
      RaceScript s;
      std::vector<std::byte> pinned(64);
      const auto event = s.event();
      const bool up = direction == CopyKind::kHostToDevice;
      const auto copy = [&](std::size_t at) {
        s.copy(s.communication, up ? pinned.data() : s.memory(at),
               up ? s.memory(at) : pinned.data(), pinned.size(), direction);
      };
      copy(0);
      s.record(event, s.communication);
      if (waited) s.host_wait(event);
      copy(128);
      const std::vector<Finding> found = check_races(s.calls);
      REQUIRE(found.size() == (waited ? 0 : 1));
      if (waited) continue;
      CHECK(found[0].one == (up ? "copy to the device" : "copy to the host"));
      CHECK(found[0].other == "host");
    }
  }
}

TEST_CASE(
    "cuda/race: an update while the bucket is sent, and one that reads what came without a wait") {
  RaceScript sent, came;
  sent.group(true);
  sent.send(1, 1, 0, 64);
  sent.receive(1, 1, 64, 64);
  sent.group(false);
  sent.write(sent.update, "update", 0, 64);
  REQUIRE(check_races(sent.calls).size() == 1);
  CHECK(check_races(sent.calls)[0].one == "send");
  CHECK(contains(check_races(sent.calls)[0].text, "'send' on stream communication reads 64 bytes"));
  came.all_reduce(1, 0, 64, 64);
  came.read(came.update, "update", 64, 64);
  REQUIRE(check_races(came.calls).size() == 1);
  CHECK(check_races(came.calls)[0].one == "all_reduce");
}

TEST_CASE("cuda/race: ranks issue in one order") {
  const auto ranks = [](const auto& body) {
    std::vector<std::vector<Call>> result;
    for (int rank = 0; rank < 3; ++rank) {
      RaceScript s(static_cast<std::uint32_t>(rank) + 1);
      s.init(1, rank);
      s.split(rank < 2 ? 2 : 0, 1, rank);
      s.split(rank > 0 ? 3 : 0, 1, rank - 1);
      body(s, rank);
      result.push_back(std::move(s.calls));
    }
    return result;
  };
  SUBCASE("the same") {
    const auto records = ranks([](RaceScript& s, int rank) {
      s.all_reduce(1, 0, 64, 64);
      if (rank < 2) s.all_reduce(2, 0, 64, 64);
      if (rank > 0) s.all_reduce(3, 0, 64, 64);
      s.group(true);  // within a group the order is free
      if (rank == 0) s.send(1, 1, 0, 64), s.receive(1, 1, 64, 64);
      if (rank == 1) s.receive(1, 0, 64, 64), s.send(1, 0, 0, 64);
      s.group(false);
    });
    CHECK(check_communicators(records).empty());
    // One record of all threads gives the same, whatever the order of the threads.
    std::vector<Call> all;
    for (int rank = 2; rank >= 0; --rank) {
      const auto& own = records[static_cast<std::size_t>(rank)];
      all.insert(all.end(), own.begin(), own.end());
    }
    const auto apart = cuda::shim::ranks_of(all);
    REQUIRE(apart.size() == 3);
    for (std::size_t rank = 0; rank < 3; ++rank) CHECK(apart[rank].front().thread == rank + 1);
    CHECK(check_communicators(apart).empty());
  }
  SUBCASE("two communicators swapped on one rank") {
    const auto records = ranks([](RaceScript& s, int rank) {
      if (rank == 0) s.all_reduce(2, 0, 64, 64), s.all_reduce(1, 0, 64, 64);
      if (rank > 0) s.all_reduce(1, 0, 64, 64);
      if (rank == 1) s.all_reduce(2, 0, 64, 64);
    });
    const std::vector<Finding> found = check_communicators(records);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == Kind::kCommunicatorOrder);
    CHECK(contains(found[0].text,
                   "rank 0 issues all_reduce on communicator 2 where rank 1 issues all_reduce on "
                   "communicator 1"));
  }
  SUBCASE("ranks that do not meet may differ") {
    const auto records = ranks([](RaceScript& s, int rank) {
      if (rank == 1) s.all_reduce(3, 0, 64, 64), s.all_reduce(2, 0, 64, 64);
      if (rank == 0) s.all_reduce(2, 0, 64, 64);
      if (rank == 2) s.all_reduce(3, 0, 64, 64);
    });
    CHECK(check_communicators(records).empty());
  }
  SUBCASE("messages and collectives in another order, and one that is missing") {
    const auto swapped = ranks([](RaceScript& s, int rank) {
      if (rank == 0) s.send(1, 1, 0, 64), s.all_reduce(1, 0, 64, 64);
      if (rank == 1) s.all_reduce(1, 0, 64, 64), s.receive(1, 0, 0, 64);
      if (rank == 2) s.all_reduce(1, 0, 64, 64);
    });
    REQUIRE(check_communicators(swapped).size() == 1);
    CHECK(contains(check_communicators(swapped)[0].text, "message from rank 0 to rank 1"));
    const auto missing = ranks([](RaceScript& s, int rank) {
      if (rank != 2) s.all_reduce(1, 0, 64, 64);
    });
    REQUIRE(check_communicators(missing).size() == 2);
    CHECK(contains(check_communicators(missing)[0].text, "where rank 2 issues nothing more"));
  }
}

}  // namespace starling::tests
