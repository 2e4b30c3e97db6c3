#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/peer_transport.h"
#include "comm/transports/staged.h"
#include "tests/cuda/race_training.h"
#include "tests/fakes/cuda/peer_fake.h"
#include "tests/fakes/transport/thread_sharing.h"

// The order that signals and waits give the accesses of several ranks to one memory, by the race
// checker. Eager steps: a launched graph touches all of its memory at once there, so that two
// ranks' graphs that read each other would always race.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

std::vector<Call> record(int ranks, const char* topology, bool in_backward) {
  struct InPlace {
    InPlace() { cuda::shim::map_in_place(true); }
    ~InPlace() { cuda::shim::map_in_place(false); }
  } const in_place;
  const TrainingSettings settings{.in_backward = in_backward, .topology = {{"type", topology}}};
  return record_training(
      {settings, ranks, 5}, [](std::unique_ptr<Transport> end, Backend& backend) {
        std::string refusal;
        auto peers = make_peer_transport(make_staged_transport(std::move(end)), backend,
                                         make_thread_sharing("host", false), {20.0}, refusal);
        REQUIRE(peers != nullptr);
        return peers;
      });
}

/// Waits for `published` counters lie at even multiples of 128 bytes, those for `released` at odd
/// ones.
bool awaits(const Call& call, bool released) {
  return call.kind == CallKind::kAwait &&
         (reinterpret_cast<std::uintptr_t>(call.from) % 256 == 128) == released;
}

}  // namespace

TEST_CASE("cuda/peer races: nothing is read before it is final, or written before it is read") {
  for (const bool in_backward : {true, false}) {
    for (const auto& [topology, ranks] : {std::pair{"ring", 2}, {"ring", 4}, {"static-exp", 3}}) {
      CAPTURE(std::string(topology));
      CAPTURE(ranks);
      CHECK(lines(cuda::shim::check_races(record(ranks, topology, in_backward))) == "");
    }
  }
}

TEST_CASE(
    "cuda/peer races: a removed wait is found, the one for neighbours and the one for readers") {
  const std::vector<Call> calls = record(4, "ring", true);
  for (const bool released : {false, true}) {
    CAPTURE(released);
    std::vector<Call> without = calls;
    CHECK(std::erase_if(without, [&](const Call& call) { return awaits(call, released); }) >= 20);
    CHECK(races(without, "update", "update") > 0);
  }
}

}  // namespace starling::tests
