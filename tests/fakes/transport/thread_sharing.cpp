#include "tests/fakes/transport/thread_sharing.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "comm/agreement.h"
#include "core/error.h"

namespace starling {
namespace {

constexpr std::size_t kPage = 4096;

class HeapBlock final : public SharedBlock {
 public:
  explicit HeapBlock(std::size_t bytes) : SharedBlock(allocate(bytes), bytes) {}
  ~HeapBlock() override { std::free(data()); }

 private:
  static std::byte* allocate(std::size_t bytes) {
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    void* memory = std::aligned_alloc(kPage, whole);
    if (!memory) fail(ExitCode::kMemory, "memory", "out of memory: {} bytes of parameters", whole);
    std::memset(memory, 0, whole);
    return static_cast<std::byte*>(memory);
  }
};

/// Blocks on their way from one thread to the others, by number.
struct Table {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::shared_ptr<SharedBlock>> blocks;
};
Table& table() {
  static Table instance;
  return instance;
}

class ThreadSharing final : public MemorySharing {
 public:
  ThreadSharing(std::string host, bool refuse) : host_(std::move(host)), refuse_(refuse) {}
  std::string host() const override { return host_; }

  SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes,
                     Kind) override {
    SharedBlocks result;
    if (const auto refused =
            lowest_reason(world, refuse_ ? "memory for the parameters: refused" : "")) {
      result.refusal = refused->text();
      return result;
    }
    std::uint64_t number = 0;
    {
      const std::scoped_lock lock(table().mutex);
      number = ++table().last;
      table().blocks[number] = std::make_shared<HeapBlock>(bytes);
    }
    const std::vector<std::string> numbers = world.all_gather(std::to_string(number));
    {
      const std::scoped_lock lock(table().mutex);
      for (const int rank : local)
        result.of.push_back(
            table().blocks.at(std::stoull(numbers[static_cast<std::size_t>(rank)])));
    }
    world.barrier();
    const std::scoped_lock lock(table().mutex);
    table().blocks.erase(number);
    return result;
  }

 private:
  std::string host_;
  bool refuse_;
};

}  // namespace

std::unique_ptr<MemorySharing> make_thread_sharing(std::string host, bool refuse) {
  return std::make_unique<ThreadSharing>(std::move(host), refuse);
}

}  // namespace starling
