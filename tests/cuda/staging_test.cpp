#include "kernels/cuda/runtime/staging.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/operations/accesses.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"

// Copies between the host and the device, through pinned slots and past them. What only a record of
// calls shows is in shim_runtime_test.cpp.
namespace starling::tests {
namespace {

std::vector<std::uint8_t> bytes_of(std::size_t size, std::size_t seed) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>((i * 2654435761u + seed * 40503u) >> 7);
  return bytes;
}

}  // namespace

TEST_CASE(
    "cuda/staging: copies of many sizes arrive, from and to every address, and nothing around "
    "them") {
  constexpr std::size_t kSmall = 64 << 10, kLarge = 8 << 20;  // a slot's bytes of either kind
  const std::size_t most = 3 * kLarge + 13;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{511}, std::size_t{512},
        std::size_t{4099}, kSmall - 1, kSmall, kSmall + 1, std::size_t{1000003}, kLarge - 1, kLarge,
        kLarge + 1, most}) {
    for (const auto& [on_device, on_host] :
         {std::pair<std::size_t, std::size_t>{0, 0}, {1, 0}, {0, 3}, {5, 1}, {8, 16}}) {
      CAPTURE(size);
      CAPTURE(on_device);
      CAPTURE(on_host);
      const auto whole = static_cast<std::int64_t>(size + on_device + 16);
      const Tensor memory(gpu(), Shape{whole}, DType::kUInt8);
      gpu().fill(memory, 0.0);
      const std::vector<std::uint8_t> sent = bytes_of(size + on_host, size + on_device);
      std::vector<std::uint8_t> all(static_cast<std::size_t>(whole), 7),
          back(size + on_host + 1, 9);
      const Tensor part = memory.slice(static_cast<std::int64_t>(on_device),
                                       Shape{static_cast<std::int64_t>(size)});
      gpu().copy_from_host(sent.data() + on_host, part);
      gpu().copy_to_host(part, back.data() + on_host);
      REQUIRE(std::equal(back.begin() + static_cast<std::ptrdiff_t>(on_host), back.end() - 1,
                         sent.begin() + static_cast<std::ptrdiff_t>(on_host)));
      CHECK(back.back() == 9);
      gpu().copy_to_host(memory, all.data());
      for (std::size_t i = 0; i < on_device; ++i) REQUIRE(all[i] == 0);
      for (std::size_t i = size + on_device; i < all.size(); ++i) REQUIRE(all[i] == 0);
    }
  }
}

TEST_CASE(
    "cuda/staging: the host may write its memory again at once, on every stream, with more copies "
    "than slots") {
  std::vector<std::vector<Tensor>> tensors(kStreams.size());
  std::vector<std::uint8_t> source;
  for (const std::size_t size : {std::size_t{1000}, std::size_t{100000}}) {
    for (std::size_t s = 0; s < kStreams.size(); ++s) {
      const StreamScope scope(gpu(), kStreams[s]);
      for (std::size_t i = 0; i < 40; ++i) {  // of small ones there are 32 slots, of large ones 16
        tensors[s].emplace_back(gpu(), Shape{static_cast<std::int64_t>(size)}, DType::kUInt8);
        source = bytes_of(size, 100 * s + i);
        gpu().copy_from_host(source.data(), tensors[s].back());
        std::fill(source.begin(), source.end(), std::uint8_t{0});
      }
    }
    for (std::size_t s = 0; s < kStreams.size(); ++s) {
      const StreamScope scope(gpu(), kStreams[s]);
      for (std::size_t i = 0; i < 40; ++i) {
        REQUIRE(host_copy<std::uint8_t>(tensors[s][i]) == bytes_of(size, 100 * s + i));
      }
      tensors[s].clear();
    }
    gpu().synchronize();
  }
  // The slots are there now: copies take no more memory.
  const Tensor x(gpu(), Shape{100000}, DType::kUInt8);
  source.assign(100000, 1);
  const auto before = cuda::runtime_counters().device_allocations;
  for (int i = 0; i < 100; ++i) gpu().copy_from_host(source.data(), x);
  gpu().copy_to_host(x, source.data());
  CHECK(cuda::runtime_counters().device_allocations == before);
}

TEST_CASE(
    "cuda/staging: copy_to_host_later brings what was there when it was called, after the wait for "
    "its event") {
  const Tensor x(gpu(), Shape{3}, DType::kFloat64);
  double first_found[3] = {-1, -1, -1}, second_found[3] = {-1, -1, -1};
  gpu().fill(x, 1.0);
  const Event first = gpu().copy_to_host_later(x, first_found);
  gpu().fill(x, 2.0);
  const Event second = gpu().copy_to_host_later(x, second_found);
  CHECK(first_found[0] == -1.0);
  const auto waits = cuda::runtime_counters().host_waits;
  gpu().synchronize(first);
  for (const double number : first_found) CHECK(number == 1.0);
  if (!on_gpu()) CHECK(second_found[0] == -1.0);
  gpu().synchronize(second);
  for (const double number : second_found) CHECK(number == 2.0);
  if (!on_gpu()) CHECK(cuda::runtime_counters().host_waits == waits);  // both were done

  // More than there are slots, on two streams in turn.
  constexpr std::size_t kCopies = 100;
  std::vector<double> found(3 * kCopies, -1.0);
  const Tensor y(gpu(), Shape{3}, DType::kFloat64);
  gpu().synchronize();
  for (std::size_t i = 0; i < kCopies; ++i) {
    const StreamScope scope(gpu(), i % 2 == 0 ? StreamKind::kCompute : StreamKind::kUpdate);
    const Tensor& from = i % 2 == 0 ? x : y;
    gpu().fill(from, static_cast<double>(i));
    gpu().copy_to_host_later(from, found.data() + 3 * i);
  }
  gpu().synchronize();
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == static_cast<double>(i / 3));

  const Tensor most(gpu(), Shape{64 << 10}, DType::kUInt8),
      large(gpu(), Shape{(64 << 10) + 1}, DType::kUInt8);
  std::vector<std::uint8_t> room(static_cast<std::size_t>(large.bytes()));
  gpu().fill(most, 5.0);
  gpu().synchronize(gpu().copy_to_host_later(most, room.data()));
  CHECK(std::count(room.begin(), room.end(), std::uint8_t{5}) == 64 << 10);
  CHECK(test::contains(test::error_text([&] { gpu().copy_to_host_later(large, room.data()); }),
                       "65536 at most"));
}

TEST_CASE(
    "cuda/staging: pinned memory is read and written by the device, behind what its stream was "
    "told before") {
  const std::int64_t n = on_gpu() ? std::int64_t{8} << 20 : std::int64_t{1} << 14;
  const auto bytes = static_cast<std::size_t>(4 * n);
  const auto sent = gpu().allocate_host(bytes), received = gpu().allocate_host(bytes);
  std::memset(received.get(), 0, bytes);
  const Tensor x(gpu(), Shape{n}, DType::kFloat32), y(gpu(), Shape{n}, DType::kFloat32);
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    for (std::int64_t i = 0; i < n; ++i)
      reinterpret_cast<float*>(sent.get())[i] = static_cast<float>(round + 1);
    Event filled;
    {
      for (int again = 0; again < 3; ++again) gpu().fill(x, -1.0);
      filled = gpu().record();
    }
    const StreamScope scope(gpu(), StreamKind::kCommunication);
    gpu().wait(filled);
    gpu().copy_from_pinned(sent.get(), x);
    gpu().copy(x, y);
    gpu().copy_to_pinned(y, received.get());
    const Event done = gpu().record();
    gpu().synchronize(done);
    CHECK(gpu().done(done));
    REQUIRE(std::memcmp(sent.get(), received.get(), bytes) == 0);
  }
}

}  // namespace starling::tests
