#include "kernels/cuda/runtime/pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"

// Device memory: blocks, their reuse, the figures, and the end of memory. On the shim and on a GPU;
// the driver's calls one by one stand in shim_runtime_test.cpp.
namespace starling::tests {
namespace {

using cuda::Pool;

std::uint64_t driver_calls() { return cuda::runtime_counters().device_allocations; }

Pool own_pool() {
  return Pool(gpu().info().number, gpu().info().name, [] { gpu().synchronize(); });
}

std::string out_of_memory(const std::function<void()>& body) {
  return test::error_of(ExitCode::kMemory, body);
}

/// More than the device has.
std::size_t too_much() { return gpu().info().total_memory + (std::size_t{1} << 30); }

}  // namespace

TEST_CASE(
    "cuda/pool: tensors of every size have memory of their own, aligned, and keep their numbers") {
  std::vector<Tensor> tensors;
  std::vector<std::int64_t> sizes = {0,    1,    127,    128,     129,     1000,
                                     4096, 4097, 100000, 1048576, 1048577, 3000001};
  for (int again = 0; again < 3; ++again) {
    for (const std::int64_t n : sizes) {
      tensors.emplace_back(gpu(), Shape{n}, DType::kFloat32);
      gpu().fill(tensors.back(), static_cast<double>(tensors.size()));
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(i);
    CHECK(reinterpret_cast<std::uintptr_t>(tensors[i].raw()) % 512 == 0);
    const std::vector<float> found = host_copy(tensors[i]);
    CHECK(found == std::vector<float>(found.size(), static_cast<float>(i + 1)));
  }
}

TEST_CASE(
    "cuda/pool: what is freed comes back on its stream without the driver, in the order of the "
    "stream") {
  Pool pool = own_pool();
  const Pool::Block a = pool.take(1000, StreamKind::kCompute),
                    b = pool.take(700, StreamKind::kCompute);
  CHECK(a.size >= 1000);
  CHECK(a.data + a.size <= b.data);
  const auto before = driver_calls();
  pool.give_back(a);
  // whose stream may not know yet that `a` is free
  const Pool::Block elsewhere = pool.take(1000, StreamKind::kUpdate);
  CHECK(elsewhere.data != a.data);
  CHECK(pool.take(1000, StreamKind::kCompute).data == a.data);
  CHECK(driver_calls() == before);

  // Large ones are the driver's, and come back whole.
  const Pool::Block large = pool.take(std::size_t{20} << 20, StreamKind::kCompute);
  CHECK(driver_calls() == before + 1);
  pool.give_back(large);
  const Pool::Block near = pool.take(large.size - large.size / 8, StreamKind::kCompute);
  CHECK(near.data == large.data);
  CHECK(near.size == large.size);
  pool.give_back(near);
  CHECK(pool.take(512, StreamKind::kCompute).data != large.data);
  CHECK(driver_calls() == before + 1);

  // A tensor's memory goes to the next one while the device may still be writing it: the stream
  // keeps them apart.
  std::vector<float> found;
  const void* first = nullptr;
  for (int i = 0; i < 20; ++i) {
    const Tensor x(gpu(), Shape{std::int64_t{1} << 20}, DType::kFloat32);
    if (!first) first = x.raw();
    CHECK(x.raw() == first);
    gpu().fill(x, i);
    if (i == 19) found = host_copy(x);
  }
  CHECK(found == std::vector<float>(std::size_t{1} << 20, 19.0f));
}

TEST_CASE("cuda/pool: the figures say what is in use, what is kept, and the most that was in use") {
  Pool pool = own_pool();
  CHECK(pool.stats().reserved == 0);
  const Pool::Block small = pool.take(5000, StreamKind::kCompute);
  CHECK(pool.stats().in_use == Pool::size_class(5000));
  CHECK(pool.stats().reserved == Pool::kSlab);
  const std::size_t size = std::size_t{48} << 20;
  const Pool::Block large = pool.take(size, StreamKind::kUpload);
  CHECK(pool.stats().in_use == small.size + large.size);
  CHECK(pool.stats().reserved == Pool::kSlab + large.size);
  pool.give_back(large);
  CHECK(pool.stats().in_use == small.size);
  CHECK(pool.stats().reserved == Pool::kSlab + large.size);
  CHECK(pool.stats().peak_in_use == small.size + large.size);
  CHECK(pool.stats().allocations == 2);
  CHECK(pool.stats().system_allocations == 2);
  pool.give_back(small);
  CHECK(pool.stats().in_use == 0);
}

TEST_CASE(
    "cuda/pool: more than the device has is one clear error, after which everything goes on") {
  Pool pool = own_pool();
  const std::size_t size = std::size_t{64} << 20;
  pool.give_back(pool.take(size, StreamKind::kCompute));
  CHECK(pool.stats().reserved == size);
  const std::string text = out_of_memory([&] { pool.take(too_much(), StreamKind::kCompute); });
  CAPTURE(text);
  CHECK(text.find("out of memory on " + gpu().info().name + ": ") != std::string::npos);
  CHECK(text.find(" free of ") != std::string::npos);
  CHECK(text.find("a smaller batch_size") != std::string::npos);
  CHECK(pool.stats().reserved == 0);  // what was cached has gone back first
  CHECK(pool.stats().in_use == 0);
  CHECK(out_of_memory([&] {
          pool.take(~std::size_t{0}, StreamKind::kCompute);
        }).find("no device has them") != std::string::npos);
  pool.give_back(pool.take(size, StreamKind::kCompute));
  CHECK(pool.stats().peak_in_use == size);

  // The same of a tensor, with work before it and behind it.
  const Tensor x(gpu(), Shape{1 << 20}, DType::kFloat32);
  gpu().fill(x, 3.0);
  out_of_memory(
      [&] { const Tensor y(gpu(), Shape{static_cast<std::int64_t>(too_much())}, DType::kUInt8); });
  const Tensor after(gpu(), Shape{1 << 20}, DType::kFloat32);
  gpu().copy(x, after);
  CHECK(host_copy(after) == std::vector<float>(std::size_t{1} << 20, 3.0f));
}

TEST_CASE("cuda/pool: threads may take and give back at once, and no two have the same block") {
  Pool pool = own_pool();
  std::vector<std::vector<Pool::Block>> held(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t, &mine = held[static_cast<std::size_t>(t)]] {
      for (int i = 0; i < 500; ++i) {
        mine.push_back(pool.take(static_cast<std::size_t>(512 * (1 + (i * 7 + t) % 9)),
                                 static_cast<StreamKind>(t)));
        if (i % 3 == 0) {
          pool.give_back(mine.front());
          mine.erase(mine.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Pool::Block> all;
  for (const auto& blocks : held) all.insert(all.end(), blocks.begin(), blocks.end());
  std::sort(all.begin(), all.end(),
            [](const Pool::Block& a, const Pool::Block& b) { return a.data < b.data; });
  for (std::size_t i = 1; i < all.size(); ++i)
    REQUIRE(all[i - 1].data + all[i - 1].size <= all[i].data);
  for (const Pool::Block& block : all) pool.give_back(block);
  CHECK(pool.stats().in_use == 0);
  CHECK(pool.stats().allocations == 2000);
}

}  // namespace starling::tests
