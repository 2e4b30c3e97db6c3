#include "tests/fakes/cuda/time_slice.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace starling::cuda::shim {
namespace {

struct File {
  std::string path =
      std::filesystem::temp_directory_path() / ("starling-slices-" + std::to_string(getpid()));
  ~File() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE(
    "cuda/time slices: a device changes hands once a slice at most, and its holder waits for "
    "nobody") {
  const File file;
  const std::chrono::milliseconds slice(20);
  SharedDevice a(file.path, slice, 1), b(file.path, slice, 2);
  const auto begin = std::chrono::steady_clock::now();
  a.take();
  a.take();
  CHECK(a.hand_overs() == 0);
  for (int i = 0; i < 3; ++i) {
    b.take();
    b.take();
    a.take();
  }
  CHECK(a.hand_overs() == 6);
  CHECK(b.hand_overs() == 6);
  CHECK(std::chrono::steady_clock::now() - begin >= 6 * slice);
}

TEST_CASE(
    "cuda/time slices: two that both have work get the device in turn, and a third after one that "
    "died") {
  const File file;
  const std::chrono::milliseconds slice(2);
  std::atomic<int> rounds{0};
  const auto work = [&](std::uint32_t owner) {
    SharedDevice device(file.path, slice, owner);
    while (rounds < 20) {
      device.take();
      ++rounds;
      std::this_thread::sleep_for(slice / 2);
    }
  };
  std::thread other([&] { work(8); });
  work(9);
  other.join();
  SharedDevice third(file.path, slice, 10);  // the file still names one of the two
  const auto before = third.hand_overs();
  CHECK(before >= 1);
  third.take();
  CHECK(third.hand_overs() == before + 1);
}

}  // namespace starling::cuda::shim
