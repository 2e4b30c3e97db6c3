// The messages of ranks over ZeroMQ: a frame of 24 bytes, then the sizes of further parts by a
// byte; all of it as a greeting, as a list of ranks, and as a secret.
#include <algorithm>
#include <cstring>

#include "comm/zeromq/frames.h"
#include "comm/zeromq/secret.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::detail;
  const std::string text(fuzz::text(data, size));
  fuzz::reads_or_refuses([&] {
    const std::string first = text.substr(0, 24);
    std::vector<std::size_t> others;
    for (std::size_t at = first.size(); at < std::min<std::size_t>(text.size(), 30); ++at)
      others.push_back(static_cast<unsigned char>(text[at]));
    const Frame frame = parse_frame(first, others);
    const FrameBytes again = encode(frame);
    fuzz::expect(std::memcmp(again.data(), first.data(), first.size()) == 0,
                 "a frame is what it was");
  });
  fuzz::reads_or_refuses([&] {
    const Hello hello = parse_hello(text);
    if (why_refused({.job = "job", .generation = 1}, hello).empty())
      fuzz::expect(hello.job == "job" && (hello.joins || hello.generation == 1) &&
                       hello.member.endpoint.starts_with("tcp://"),
                   "a rank of the job, or one that asks to be");
  });
  fuzz::reads_or_refuses([&] {
    const Roster roster = parse_roster(text);
    fuzz::expect(parse_roster(encode(roster)).members == roster.members, "a roster is what it was");
  });
  return fuzz::reads_or_refuses([&] { parse_secret(text, "secret"); });
}
