#include "tests/fakes/cuda/time_slice.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "core/error.h"

namespace starling::cuda::shim {

/// All zero in a new file: nobody has the device.
struct SharedDevice::Page {
  /// Owner << 40 | microseconds of the clock when it took the device
  std::atomic<std::uint64_t> holder;
  std::atomic<std::uint64_t> hand_overs;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

constexpr unsigned kClockBits = 40;
constexpr std::uint64_t kClockMask = (std::uint64_t{1} << kClockBits) - 1;

/// The machine's clock, the same in all processes.
std::uint64_t microseconds_now() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count()) &
         kClockMask;
}

std::unique_ptr<SharedDevice> device_of_environment() {
  const char* given = std::getenv("STARLING_SHIM_SLICE_MS");
  if (!given || !*given) return nullptr;
  char* end = nullptr;
  const double milliseconds = std::strtod(given, &end);
  if (*end || !(milliseconds >= 0.0 && milliseconds <= 1000.0)) {
    fail(ExitCode::kUsage, "shim",
         "STARLING_SHIM_SLICE_MS is {}; a number of milliseconds from 0 to 1000 is needed", given);
  }
  if (milliseconds == 0.0) return nullptr;
  const std::string file =
      std::filesystem::temp_directory_path() / fmt::format("starling-shim-device-{}", getuid());
  return std::make_unique<SharedDevice>(
      file, std::chrono::microseconds(static_cast<std::int64_t>(1e3 * milliseconds)),
      static_cast<std::uint32_t>(getpid()));
}

}  // namespace

SharedDevice::SharedDevice(const std::string& file, std::chrono::microseconds slice,
                           std::uint32_t owner)
    : slice_(slice), owner_(owner & 0xffffff) {
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Page)) != 0) {
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    fail(ExitCode::kInternal, "shim", "the file {} of a shared device cannot be made: {}", file,
         std::strerror(error));
  }
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED)
    fail(ExitCode::kInternal, "shim", "the file {} of a shared device cannot be mapped: {}", file,
         std::strerror(errno));
  page_ = static_cast<Page*>(memory);
}

SharedDevice::~SharedDevice() { munmap(page_, sizeof(Page)); }

void SharedDevice::take() {
  for (;;) {
    std::uint64_t holder = page_->holder.load(std::memory_order_acquire);
    const std::uint64_t now = microseconds_now(), since = (now - holder) & kClockMask;
    if (holder >> kClockBits == owner_) return;  // nobody took it, though the slice may be over
    const auto slice = static_cast<std::uint64_t>(slice_.count());
    if (holder != 0 && since < slice) {
      std::this_thread::sleep_for(std::chrono::microseconds(slice - since));
      continue;
    }
    if (!page_->holder.compare_exchange_strong(holder, std::uint64_t{owner_} << kClockBits | now,
                                               std::memory_order_acq_rel))
      continue;
    if (holder != 0) page_->hand_overs.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

std::uint64_t SharedDevice::hand_overs() const {
  return page_->hand_overs.load(std::memory_order_relaxed);
}

void take_device() {
  static const std::unique_ptr<SharedDevice> device = device_of_environment();
  if (device) device->take();
}

void sleep_in_kernel(unsigned nanoseconds) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  take_device();
}

}  // namespace starling::cuda::shim
