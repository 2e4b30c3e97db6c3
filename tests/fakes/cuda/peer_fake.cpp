#include "tests/fakes/cuda/peer_fake.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/fakes/cuda/recorder.h"

// Shareable device memory as memory files: threads and processes map the same bytes, at addresses
// of their own.
namespace starling::cuda {
namespace {

/// What is mapped here.
struct Blocks {
  std::mutex mutex;
  bool in_place = false;
  std::map<ino_t, std::byte*> of_file;  ///< where its owner has it
  std::map<void*, int> views;           ///< how often each is mapped
};
Blocks& blocks() {
  static Blocks one;
  return one;
}

shim::PeerRefusal refusal_of_environment() {
  const char* given = std::getenv("STARLING_SHIM_REFUSE_PEERS");
  const std::string_view word = given ? given : "";
  if (word.empty()) return shim::PeerRefusal::kNone;
  if (word == "export") return shim::PeerRefusal::kExport;
  if (word == "access") return shim::PeerRefusal::kAccess;
  if (word == "create") return shim::PeerRefusal::kCreate;
  if (word == "map") return shim::PeerRefusal::kMap;
  fail(ExitCode::kUsage, "shim",
       "STARLING_SHIM_REFUSE_PEERS is {}; allowed: export, access, create, map", word);
}
thread_local shim::PeerRefusal refused = refusal_of_environment();

void* map_file(int file, std::size_t bytes) {
  const std::lock_guard lock(blocks().mutex);
  struct stat status {};
  fstat(file, &status);
  if (const auto own = blocks().of_file.find(status.st_ino);
      blocks().in_place && own != blocks().of_file.end()) {
    ++blocks().views[own->second];
    return own->second;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) fail(ExitCode::kInternal, "cuda", "cuMemMap: {}", std::strerror(errno));
  blocks().of_file.emplace(status.st_ino, static_cast<std::byte*>(memory));
  ++blocks().views[memory];
  return memory;
}

}  // namespace

namespace shim {

void sleep_in_kernel(unsigned nanoseconds) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
}
void refuse_peers(PeerRefusal what) { refused = what; }
void map_in_place(bool in_place) {
  const std::lock_guard lock(blocks().mutex);
  blocks().in_place = in_place;
}
int mapped_blocks() {
  const std::lock_guard lock(blocks().mutex);
  int count = 0;
  for (const auto& [memory, views] : blocks().views) count += views;
  return count;
}

}  // namespace shim

std::string device_uuid(int device) { return fmt::format("fake device {}", device); }

std::string why_not_shareable(int) {
  return refused == shim::PeerRefusal::kExport
             ? "its GPU's memory cannot be exported as a file descriptor"
             : "";
}

std::string why_not_reachable(int, const std::string&) {
  return refused == shim::PeerRefusal::kAccess
             ? "the GPUs cannot access each other's memory (cudaDeviceCanAccessPeer)"
             : "";
}

void* shareable_allocate(int, std::size_t bytes, int& descriptor) {
  if (refused == shim::PeerRefusal::kCreate)
    fail(ExitCode::kMemory, "cuda", "cuMemCreate: out of memory (2)");
  const int file = memfd_create("starling-fake-device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    if (file >= 0) close(file);
    fail(ExitCode::kMemory, "cuda", "cuMemCreate: {}", std::strerror(error));
  }
  void* memory = nullptr;
  try {
    memory = map_file(file, bytes);
  } catch (...) {
    close(file);
    throw;
  }
  std::memset(memory, 0xff, bytes);  // NaN: what nobody wrote must not count
  descriptor = file;
  shim::note(
      {.kind = shim::CallKind::kAllocate, .label = "shareable", .to = memory, .bytes = bytes});
  return memory;
}

void* shareable_map(int, int descriptor, std::size_t bytes) {
  if (refused == shim::PeerRefusal::kMap)
    fail(ExitCode::kInternal, "cuda", "cuMemImportFromShareableHandle: invalid argument (1)");
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    fail(ExitCode::kInternal, "cuda", "cuMemMap: {} bytes of a block of {}", bytes, status.st_size);
  }
  return map_file(descriptor, bytes);
}

void shareable_free(int, void* memory, std::size_t bytes) noexcept {
  const std::lock_guard lock(blocks().mutex);
  const auto view = blocks().views.find(memory);
  if (view == blocks().views.end()) std::abort();  // freed twice, or never mapped
  if (--view->second > 0) return;
  blocks().views.erase(view);
  std::erase_if(blocks().of_file, [&](const auto& own) { return own.second == memory; });
  munmap(memory, bytes);
}

}  // namespace starling::cuda
