#include "core/peer_memory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"

// Memory that ranks map, and the counters by which they tell each other, within one process: on the
// shim, and on a GPU.
namespace starling::tests {
namespace {

class BlockStorage final : public Storage {
 public:
  BlockStorage(Backend& backend, std::shared_ptr<PeerBlock> block)
      : Storage(backend, block->data(), block->bytes()), block_(block) {}

 private:
  std::shared_ptr<PeerBlock> block_;
};

/// A block as its owner and another rank see it.
struct Shared {
  static constexpr std::size_t kBytes = 3 << 20;
  Shared() : memory(*gpu().peer_memory()) {
    int file = -1;
    own = memory.create(kBytes, file);
    other = memory.map(file, kBytes);
    close(file);
  }
  ~Shared() {
    gpu().synchronize();
    memory.restart();
  }
  static Tensor numbers(const std::shared_ptr<PeerBlock>& block) {
    return {std::make_shared<BlockStorage>(gpu(), block), 0,
            Shape{static_cast<std::int64_t>(kBytes / 4)}, DType::kInt32};
  }
  static std::uint32_t* counter(const std::shared_ptr<PeerBlock>& block, std::size_t index) {
    return reinterpret_cast<std::uint32_t*>(block->data() + 128 * index);
  }
  std::uint32_t read(std::size_t index) {
    return static_cast<std::uint32_t>(host_copy<std::int32_t>(
        numbers(own).slice(static_cast<std::int64_t>(32 * index), Shape{1}))[0]);
  }
  /// Seconds until the device has awaited the counter of the other's view.
  double await(std::size_t index, std::uint32_t value, double limit) {
    const auto begin = std::chrono::steady_clock::now();
    const PeerMemory::Awaited counters[] = {{counter(other, index), 7}};
    memory.await(counters, value, {3, 1}, limit);
    gpu().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  PeerMemory& memory;
  std::shared_ptr<PeerBlock> own, other;
};

/// A device may say yes, and a sandbox around it refuse to hand its memory on all the same.
std::string why_not_shared() {
  const std::string why = gpu().peer_memory()->why_not_exported();
  return why.empty() ? test::error_text([] { const Shared once; }) : why;
}
bool refused() {
  static const std::string why = why_not_shared();
  if (!why.empty()) MESSAGE("skipped: " << why);
  return !why.empty();
}

}  // namespace

TEST_CASE(
    "cuda/peer: a block is zeroed, and what its owner writes is what those see that have mapped "
    "it, when the owner has let it go too") {
  if (refused()) return;
  Shared shared;
  CHECK(shared.memory.why_not_reached(shared.memory.device()).empty());
  CHECK(!shared.memory.why_not_reached("no such device").empty() == on_gpu());
  CHECK(reinterpret_cast<std::uintptr_t>(shared.own->data()) % 4096 == 0);
  std::vector<std::int32_t> numbers(Shared::kBytes / 4);
  CHECK(host_copy<std::int32_t>(Shared::numbers(shared.other)) == numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
  gpu().copy_from_host(numbers.data(), Shared::numbers(shared.own));
  gpu().synchronize();
  shared.own.reset();
  CHECK(host_copy<std::int32_t>(Shared::numbers(shared.other)) == numbers);
}

TEST_CASE(
    "cuda/peer: counters go round in a circle, and a wait that takes too long ends and says for "
    "whom") {
  if (refused()) return;
  Shared shared;
  shared.memory.signal(Shared::counter(shared.own, 2), 5);
  CHECK(shared.await(2, 5, 20.0) < 10.0);
  CHECK(shared.await(2, 4, 20.0) < 10.0);
  CHECK(!shared.memory.lost());
  shared.memory.signal(Shared::counter(shared.own, 2), 0xfffffffe);
  CHECK(shared.await(2, 0xfffffffe, 20.0) < 10.0);
  shared.memory.signal(Shared::counter(shared.own, 2), 1);
  CHECK(shared.await(2, 0xffffffff, 20.0) < 10.0);  // 1 comes after it
  CHECK(!shared.memory.lost());
  CHECK(shared.await(2, 2, 0.05) >= 0.05);
  const auto loss = shared.memory.lost();
  REQUIRE(loss.has_value());
  CHECK(loss->rank == 7);
  CHECK(loss->purpose.bucket == 3);
  CHECK(loss->purpose.kind == 1);
  CHECK(loss->wanted == 2);
  CHECK(loss->seen == 1);
  CHECK(shared.await(2, 9, 20.0) < 10.0);  // all is lost: nobody waits any more
  CHECK(shared.memory.lost()->wanted == 2);
  shared.memory.restart();
  CHECK(!shared.memory.lost());
  CHECK(shared.await(2, 3, 0.05) >= 0.05);
  CHECK(shared.memory.lost()->wanted == 3);
  shared.memory.restart();
  shared.memory.give_up();
  CHECK(shared.await(2, 3, 20.0) < 10.0);
  CHECK(!shared.memory.lost());
}

TEST_CASE("cuda/peer: one wait may be for many counters") {
  if (refused()) return;
  Shared shared;
  std::vector<PeerMemory::Awaited> counters;
  for (int i = 0; i < 19; ++i) {
    counters.push_back({Shared::counter(shared.other, static_cast<std::size_t>(i)), i});
    if (i != 17) shared.memory.signal(Shared::counter(shared.own, static_cast<std::size_t>(i)), 4);
  }
  shared.memory.await(counters, 4, {0, 0}, 0.05);
  gpu().synchronize();
  REQUIRE(shared.memory.lost().has_value());
  CHECK(shared.memory.lost()->rank == 17);
}

TEST_CASE("cuda/peer: in a graph, counts go on with the steps between the capture and the launch") {
  if (refused()) return;
  Shared shared;
  REQUIRE(gpu().begin_capture({.pass = 11}));
  const PeerMemory::Awaited counters[] = {{Shared::counter(shared.other, 1), 7}};
  shared.memory.await(counters, 0xfffffffe, {3, 1}, 0.05);
  shared.memory.signal(Shared::counter(shared.own, 0), 0xffffffff);
  const auto graph = gpu().end_capture();
  CHECK(shared.read(0) == 0);
  shared.memory.signal(Shared::counter(shared.own, 1), 0xfffffffe);
  graph->launch({.pass = 11});
  CHECK(shared.read(0) == 0xffffffff);
  CHECK(!shared.memory.lost());
  shared.memory.signal(Shared::counter(shared.own, 1), 1);
  graph->launch({.pass = 14});
  CHECK(shared.read(0) == 2);
  CHECK(!shared.memory.lost());
  graph->launch({.pass = 15});
  gpu().synchronize();
  REQUIRE(shared.memory.lost().has_value());
  CHECK(shared.memory.lost()->wanted == 2);
  CHECK(shared.memory.lost()->seen == 1);
}

}  // namespace starling::tests
