#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "comm/shared/descriptors.h"
#include "comm/shared/memory_sharing.h"
#include "comm/shared/shared_buckets.h"
#include "comm/shared/shared_tensor.h"
#include "core/error.h"
#include "core/host.h"

namespace starling {
namespace {

using detail::Descriptor;
using detail::refuse;

constexpr std::size_t kHugePage = 2u << 20;

/// The size of a block, rounded up to pages: huge pages if it is large enough.
std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + page - 1) / page * page;
}

/// A memory file mapped by this process. The mapping outlives the descriptor.
class MappedBlock final : public SharedBlock {
 public:
  /// `writes`: may this rank; `now`: take the memory of all pages.
  MappedBlock(const Descriptor& file, std::size_t bytes, bool writes, bool now = true)
      : SharedBlock(map(file, whole_pages(bytes), writes, now), bytes) {}
  ~MappedBlock() override { munmap(data(), whole_pages(bytes())); }

 private:
  static std::byte* map(const Descriptor& file, std::size_t bytes, bool writes, bool now) {
    // Reserve more address space than needed, to align the mapping to huge pages.
    const std::size_t space = bytes + kHugePage;
    void* reserved =
        mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) refuse("mmap");
    auto* const begin = static_cast<std::byte*>(reserved);
    const std::size_t before =
        (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    std::byte* const at = begin + before;
    const int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(at, bytes, access, MAP_SHARED | MAP_FIXED, file.number(), 0) == MAP_FAILED) {
      const int error = errno;
      munmap(begin, space);
      errno = error;
      refuse("mmap");
    }
    if (before > 0) munmap(begin, before);
    munmap(at + bytes, space - before - bytes);
    madvise(at, bytes, MADV_DONTFORK);  // child processes must not inherit it
    if (!now) return at;
    // Small pages make the update of a large bucket a third slower. Kernels without this call
    // return an error, and small pages are used.
    if (writes && bytes >= kHugePage) madvise(at, bytes, kCollapse);
    madvise(at, bytes, writes ? kPopulateWrite : kPopulateRead);  // page faults now, not in a step
    return at;
  }
  // Advice of Linux 6.1 and 5.14, as numbers for older headers.
  static constexpr int kCollapse = 25, kPopulateRead = 22, kPopulateWrite = 23;
};

/// A memory file of sealed size, with all pages allocated if `now`, so that accesses never fail.
Descriptor make_file(std::size_t block, bool now) {
  const std::size_t bytes = whole_pages(block);
  // RLIMIT_FSIZE: exceeding it would raise a signal instead of returning an error.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < bytes) {
    fail(ExitCode::kInternal, "sharing",
         "{} bytes of shared memory are beyond the file size limit (ulimit -f) of {} bytes", bytes,
         limit.rlim_cur);
  }
  Descriptor file(memfd_create("starling", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) refuse("memfd_create");
  if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0)
    refuse("ftruncate of shared memory");
  if (now && fallocate(file.number(), 0, 0, static_cast<off_t>(bytes)) != 0)
    refuse("fallocate of shared memory");
  if (fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    refuse("sealing shared memory");
  return file;
}

void check_file(const Descriptor& file, std::size_t block) {
  const std::size_t bytes = whole_pages(block);
  struct stat status {};
  if (fstat(file.number(), &status) != 0) refuse("fstat of shared memory");
  if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) != bytes ||
      (fcntl(file.number(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    fail(ExitCode::kInternal, "sharing",
         "another rank's shared memory has {} bytes, needed: {}, sealed", status.st_size, bytes);
  }
}

class ProcessSharing final : public MemorySharing {
 public:
  explicit ProcessSharing(double timeout_seconds) : timeout_(std::min(timeout_seconds, 30.0)) {}

  /// One kernel, and one network namespace, which abstract socket names belong to.
  std::string host() const override {
    return host_name() + " " + boot_id() + " " + namespace_id("net");
  }

  SharedBlocks share(World& world, const std::vector<int>& local, std::size_t bytes,
                     Kind kind) override {
    const bool now = kind != Kind::kSparse;
    const auto size_of_rank = [&](std::size_t place) {
      return kind == Kind::kOfFirst && place > 0 ? std::size_t{1} : bytes;
    };
    const auto own = static_cast<std::size_t>(std::find(local.begin(), local.end(), world.rank()) -
                                              local.begin());
    SharedBlocks blocks = detail::share_blocks<SharedBlock>(
        world, local, timeout_,
        [&](Descriptor& file) {
          file = make_file(size_of_rank(own), now);
          return std::make_shared<MappedBlock>(file, size_of_rank(own), true, now);
        },
        [&](std::size_t place, const Descriptor& file) {
          check_file(file, size_of_rank(place));
          return std::make_shared<MappedBlock>(file, size_of_rank(place), kind == Kind::kOfFirst,
                                               now);
        });
    if (local.size() < 2) blocks.of.clear();
    return blocks;
  }

 private:
  double timeout_;
};

}  // namespace

HostRanks find_hosts(World& world, const std::string& own_host) {
  HostRanks ranks;
  std::map<std::string, int> ranks_of;
  const std::vector<std::string> hosts = world.all_gather(own_host);
  for (int r = 0; r < world.size(); ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    if (host == own_host) ranks.local.push_back(r);
    ranks.any_share |= ++ranks_of[host] > 1;
  }
  ranks.one_host = ranks_of.size() == 1;
  return ranks;
}

std::unique_ptr<MemorySharing> make_process_sharing(double timeout_seconds) {
  return std::make_unique<ProcessSharing>(timeout_seconds);
}

Tensor share_tensor(MemorySharing& sharing, World& world, const std::vector<int>& ranks,
                    Backend& backend, const Shape& shape, DType dtype, std::string& refusal) {
  const std::size_t bytes =
      std::max<std::size_t>(static_cast<std::size_t>(shape.elements()) * size_of(dtype), 1);
  const SharedBlocks blocks = sharing.share(world, ranks, bytes, MemorySharing::Kind::kOfFirst);
  refusal = blocks.refusal;
  if (!refusal.empty()) return {};
  return Tensor(
      std::make_shared<detail::BlockStorage<SharedBlock>>(backend, blocks.of.front(), 0, bytes), 0,
      shape, dtype);
}

bool is_shared(const Tensor& tensor) {
  return dynamic_cast<const detail::BlockStorage<SharedBlock>*>(tensor.storage().get()) != nullptr;
}

}  // namespace starling
