#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"
#include "tests/support/errors.h"

// What the race checker says of short records: one for each rule, and its neighbour that is right.
namespace starling::tests {
namespace {

using cuda::CopyKind;
using cuda::shim::Call;
using cuda::shim::CallKind;
using cuda::shim::check_communicators;
using cuda::shim::check_races;
using cuda::shim::Finding;

/// A record of calls as text, a call up to each ';', over 4096 bytes of device memory and as many
/// pinned ones. S is a stream (c compute, u update, x communication), E an event, C a communicator,
/// AT+N are bytes:
///   S reads LABEL AT+N | S writes LABEL AT+N | S takes AT+N | S frees AT+N
///   S records E | S waits E | host waits E | host asks E | S follows S (by an event of their own)
///   S uploads AT+N | S downloads AT+N (from and to the first pinned bytes)
///   S captures | S ends | S launches | group | end
///   init C RANK | split C PARENT RANK | send C PEER AT+N | receive C PEER AT+N
///   S reduces C AT+N AT (all_reduce)
class Script {
 public:
  explicit Script(const std::string& text, std::uint32_t thread = 1) : thread_(thread) {
    for (const auto& [name, label] :
         {std::pair{"c", "compute"}, {"u", "update"}, {"x", "communication"}})
      add({.kind = CallKind::kCreateStream, .stream = handle(name), .label = label});
    std::istringstream calls(text);
    for (std::string call; std::getline(calls, call, ';');) read(call);
  }
  std::vector<Call> calls;

 private:
  struct Bytes {
    std::byte* at;
    std::size_t count;
  };
  static Bytes bytes(std::istringstream& words) {
    static std::array<std::byte, 4096> memory;
    std::size_t at = 0, count = 0;
    char plus = 0;
    words >> at >> plus >> count;
    return {&memory[at], count};
  }
  void* handle(const std::string& name) { return &handles_[name]; }
  void add(Call call) {
    call.thread = thread_;
    calls.push_back(std::move(call));
  }
  void record(const std::string& event, void* on) {
    add({.kind = CallKind::kRecord,
         .stream = on,
         .event = handle(event),
         .recording = ++recordings_[event]});
  }
  void wait(CallKind kind, const std::string& event, void* stream) {
    add({.kind = kind, .stream = stream, .event = handle(event), .recording = recordings_[event]});
  }
  void read(const std::string& call) {
    static std::array<std::byte, 4096> pinned;
    std::istringstream words(call);
    std::string first, verb, name;
    int communicator = 0, number = 0;
    if (!(words >> first)) return;
    if (first == "group") return add({.kind = CallKind::kNcclGroupStart});
    if (first == "end") return add({.kind = CallKind::kNcclGroupEnd});
    if (first == "init") {
      words >> communicator >> number;
      return add({.kind = CallKind::kNcclInit, .communicator = communicator, .peer = number});
    }
    if (first == "split") {
      int parent = 0;
      words >> communicator >> parent >> number;
      return add({.kind = CallKind::kNcclSplit,
                  .communicator = communicator,
                  .parent = parent,
                  .peer = number});
    }
    if (first == "send" || first == "receive") {
      words >> communicator >> number;
      const auto [at, count] = bytes(words);
      const bool sends = first == "send";
      return add({.kind = sends ? CallKind::kNcclSend : CallKind::kNcclReceive,
                  .stream = handle("x"),
                  .from = sends ? at : nullptr,
                  .to = sends ? nullptr : at,
                  .bytes = count,
                  .communicator = communicator,
                  .peer = number});
    }
    words >> verb;
    void* const stream = first == "host" ? nullptr : handle(first);
    if (verb == "reads" || verb == "writes") {
      words >> name;
      const auto [at, count] = bytes(words);
      const bool reads = verb == "reads";
      return add({.kind = reads ? CallKind::kRead : CallKind::kWrite,
                  .stream = stream,
                  .label = name,
                  .from = reads ? at : nullptr,
                  .to = reads ? nullptr : at,
                  .bytes = count});
    }
    if (verb == "takes" || verb == "frees") {
      const auto [at, count] = bytes(words);
      return add({.kind = verb == "takes" ? CallKind::kTake : CallKind::kGiveBack,
                  .stream = stream,
                  .to = at,
                  .bytes = count});
    }
    if (verb == "uploads" || verb == "downloads") {
      const auto [at, count] = bytes(words);
      const bool up = verb == "uploads";
      return add({.kind = CallKind::kCopy,
                  .stream = stream,
                  .from = up ? pinned.data() : at,
                  .to = up ? at : pinned.data(),
                  .bytes = count,
                  .copy = up ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost});
    }
    if (verb == "reduces") {
      words >> communicator;
      const auto [at, count] = bytes(words);
      return add({.kind = CallKind::kNcclCollective,
                  .stream = stream,
                  .label = "all_reduce",
                  .from = at,
                  .to = bytes(words).at,
                  .bytes = count,
                  .communicator = communicator,
                  .bytes_to = count});
    }
    if (verb == "captures") return add({.kind = CallKind::kBeginCapture, .stream = stream});
    if (verb == "ends" || verb == "launches") {
      return add({.kind = verb == "ends" ? CallKind::kEndCapture : CallKind::kLaunchGraph,
                  .stream = stream,
                  .graph = handle("graph")});
    }
    words >> name;
    if (verb == "records") return record(name, stream);
    if (verb == "asks") return wait(CallKind::kDone, name, nullptr);
    if (verb == "waits") return wait(stream ? CallKind::kWait : CallKind::kHostWait, name, stream);
    require(verb == "follows", "test", "no call: {}", call);
    const std::string mark = "mark " + std::to_string(calls.size());
    record(mark, handle(name));
    wait(CallKind::kWait, mark, stream);
  }

  std::uint32_t thread_;
  std::map<std::string, char> handles_;
  std::map<std::string, std::uint64_t> recordings_;
};

/// "race conv, update; …": kinds, and of all but orders of communicators the two names.
std::string in_words(const std::vector<Finding>& findings) {
  static constexpr const char* kKinds[] = {"race", "unrecorded", "reused", "freed", "order"};
  std::string result;
  for (const Finding& finding : findings) {
    result += std::string(result.empty() ? "" : "; ") + kKinds[static_cast<int>(finding.kind)];
    if (finding.kind != Finding::Kind::kCommunicatorOrder)
      result += " " + finding.one + ", " + finding.other;
  }
  return result;
}

}  // namespace

TEST_CASE("cuda/race: each rule, broken and kept") {
  struct Row {
    const char *calls, *found = "", *text = "";  ///< what the first finding's text has in it
  };
  const Row rows[] = {
      // Two streams on the same bytes need an event between them.
      {"c writes conv 100+64; u writes update 160+64", "race conv, update",
       "'conv' on stream compute writes 64 bytes"},
      {"c reads conv 100+64; u writes update 160+64", "race conv, update",
       "'conv' on stream compute reads 64 bytes"},
      {"c writes conv 100+64; u writes update 160+64", "race conv, update",
       "'update' on stream update writes 64 bytes"},
      {"c writes a 100+64; u follows c; u writes b 160+64"},
      {"c reads a 100+64; u follows c; u writes b 160+64"},
      // Reads do not race, nor neighbouring bytes, nor one stream with itself.
      {"c reads a 0+64; u reads b 32+64; c writes c 200+56; u writes d 256+64; c writes e 0+0; x "
       "writes f 512+64; x reads g 512+64; x writes h 500+100"},
      // A third stream.
      {"c writes a 0+64; x follows c; u follows x; u writes b 0+64"},
      // The host waits, or sees that it is done, and issues afterwards.
      {"c writes a 0+64; c records e; host waits e; u writes b 0+64"},
      {"c writes a 0+64; c records e; host asks e; u writes b 0+64"},
      // What was issued before the host waited, for nothing, is not ordered by it.
      {"u writes b 0+64; host waits e; c writes a 0+64", "unrecorded wait, the host; race b, a"},
      // A recording that was made too early; one after the wait; one before it.
      {"c records e; c writes a 0+64; u waits e; u writes b 0+64", "race a, b"},
      {"c records e; u waits e; c writes a 0+64; c records e; u writes b 0+64", "race a, b"},
      {"c records e; c writes a 0+64; c records e; u waits e; u writes b 0+64"},
      // NCCL's work counts from its group's end; two members of one group in one buffer.
      {"group; receive 1 1 64+64; u follows x; end; u reads update 64+64", "race receive, update"},
      {"group; receive 1 1 64+64; receive 1 2 100+64; end", "race receive, receive"},
      // A wait for an event that was never recorded; whether it is done may be asked.
      {"host waits e", "unrecorded wait, the host", "the host waits"},
      {"u waits e", "unrecorded wait, stream update", "stream update waits"},
      {"host asks e"},
      // The pool gives memory out again in the order of its stream.
      {"c takes 0+512; c writes a 0+512; x follows c; x reads send 0+512; c frees 0+512; c takes "
       "0+512; c writes b 0+512",
       "reused send, stream compute"},
      {"c takes 0+512; c writes a 0+512; x follows c; x reads send 0+512; c follows x; c frees "
       "0+512; c takes 0+512; c writes b 0+512"},
      {"c takes 0+512; c writes a 0+512; c frees 0+512; c reads b 128+4", "freed give back, b"},
      // Pinned memory is the host's again only after it has waited for the copy.
      {"x uploads 0+64; x records e; x uploads 128+64", "race copy to the device, host"},
      {"x uploads 0+64; x records e; host waits e; x uploads 128+64"},
      {"x downloads 0+64; x records e; x downloads 128+64", "race copy to the host, host"},
      {"x downloads 0+64; x records e; host waits e; x downloads 128+64"},
      // An update while the bucket is sent, and one that reads what came without a wait.
      {"group; send 1 1 0+64; receive 1 1 64+64; end; u writes update 0+64", "race send, update",
       "'send' on stream communication reads 64 bytes"},
      {"x reduces 1 0+64 64; u reads update 64+64", "race all_reduce, update"},
      // Operations of two communicators on one device must follow each other, in graphs too.
      {"x reduces 1 0+64 64; u reduces 2 128+64 192", "order",
       "communicator 1 on stream communication"},
      {"x reduces 1 0+64 64; x records e; u waits e; u reduces 2 128+64 192"},
      {"c captures; x follows c; u follows c; x reduces 1 0+64 64; u reduces 2 128+64 192; c "
       "follows x; c follows u; c ends; c launches; c launches",
       "order", "communicator 2"},
      {"c captures; x follows c; u follows c; x reduces 1 0+64 64; u follows x; u reduces 2 128+64 "
       "192; c follows x; c follows u; c ends; c launches; c launches"},
      {"c captures; x follows c; x reduces 1 0+64 64; c follows x; c ends; c launches; x reduces 2 "
       "128+64 192",
       "order"},
      // Within a graph a stream must wait for the work that it goes on with.
      {"c captures; c records e; c writes a 0+64; u waits e; u reads b 0+64; c follows u; c ends",
       "race a, b"},
      {"c captures; c writes a 0+64; u follows c; u reads b 0+64; c follows u; c ends; c launches"},
      // A launch touches all at once: a batch that goes up too early, or arrives too late.
      {"c captures; c reads a 0+64; c ends; c launches; x uploads 0+64",
       "race a, copy to the device"},
      {"c captures; c reads a 0+64; c ends; c launches; x follows c; x uploads 0+64"},
      {"c captures; c reads a 0+64; c ends; x uploads 0+64; c launches",
       "race copy to the device, a"},
      {"c captures; c reads a 0+64; c ends; x uploads 0+64; c follows x; c launches"},
      // The next launch writes the loss that another stream still reads.
      {"c captures; c writes a 0+64; c ends; c launches; x follows c; x reads b 0+64; c launches",
       "race b, a"},
      {"c captures; c writes a 0+64; c ends; c launches; x follows c; x reads b 0+64; c follows x; "
       "c launches"},
      // Memory of the graph's own that is read after it, and a batch's that is given back before.
      {"c captures; c takes 0+64; c writes a 0+64; c frees 0+64; c ends; c launches; c launches"},
      {"c captures; c takes 0+64; c writes a 0+64; c frees 0+64; c ends; c launches; c reads b "
       "0+64",
       "freed give back, b"},
      {"c takes 0+64; c captures; c reads a 0+64; c ends; c launches; c frees 0+64; c launches",
       "freed give back, a"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.calls);
    const std::vector<Finding> found = check_races(Script(row.calls).calls);
    CHECK(in_words(found) == row.found);
    if (*row.text) CHECK(test::contains(found.at(0).text, row.text));
  }
}

TEST_CASE("cuda/race: ranks issue in one order") {
  struct Row {
    const char* ranks[3];
    const char *found = "", *text = "";
  };
  const Row rows[] = {
      // The same; within a group the order is free.
      {{"x reduces 1 0+64 64; x reduces 2 0+64 64; group; send 1 1 0+64; receive 1 1 64+64; end",
        "x reduces 1 0+64 64; x reduces 2 0+64 64; x reduces 3 0+64 64; group; receive 1 0 64+64; "
        "send 1 0 0+64; end",
        "x reduces 1 0+64 64; x reduces 3 0+64 64; group; end"}},
      // Two communicators swapped on one rank.
      {{"x reduces 2 0+64 64; x reduces 1 0+64 64", "x reduces 1 0+64 64; x reduces 2 0+64 64",
        "x reduces 1 0+64 64"},
       "order",
       "rank 0 issues all_reduce on communicator 2 where rank 1 issues all_reduce on communicator "
       "1"},
      // Ranks that do not meet may differ.
      {{"x reduces 2 0+64 64", "x reduces 3 0+64 64; x reduces 2 0+64 64", "x reduces 3 0+64 64"}},
      // Messages and collectives in another order, and one that is missing.
      {{"send 1 1 0+64; x reduces 1 0+64 64", "x reduces 1 0+64 64; receive 1 0 0+64",
        "x reduces 1 0+64 64"},
       "order",
       "message from rank 0 to rank 1"},
      {{"x reduces 1 0+64 64", "x reduces 1 0+64 64", ""},
       "order; order",
       "where rank 2 issues nothing more"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.ranks[1]);
    // Communicator 2 is of ranks 0 and 1, communicator 3 of 1 and 2.
    const char* made[] = {"init 1 0; split 2 1 0; split 0 1 -1; ",
                          "init 1 1; split 2 1 1; split 3 1 0; ",
                          "init 1 2; split 0 1 2; split 3 1 1; "};
    std::vector<std::vector<Call>> records;
    std::vector<Call> all;  // of all threads, whatever their order
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      records.push_back(Script(std::string(made[rank]) + row.ranks[rank], rank + 1).calls);
      all.insert(all.begin(), records.back().begin(), records.back().end());
    }
    const std::vector<Finding> found = check_communicators(records);
    CHECK(in_words(found) == row.found);
    if (*row.text) CHECK(test::contains(found.at(0).text, row.text));
    const auto apart = cuda::shim::ranks_of(all);
    REQUIRE(apart.size() == 3);
    for (std::uint32_t rank = 0; rank < 3; ++rank) CHECK(apart[rank].front().thread == rank + 1);
    CHECK(in_words(check_communicators(apart)) == row.found);
  }
}

}  // namespace starling::tests
