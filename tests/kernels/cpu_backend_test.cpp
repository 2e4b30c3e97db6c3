#include "kernels/cpu/cpu_backend.h"
#include "core/operations/map.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/philox.h"
#include "kernels/open_backend.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/operations/operation_table.h"

namespace starling::tests {
namespace {

using Index = std::int64_t;

template <class T>
Tensor tensor_of(Backend& backend, const std::vector<T>& values, const Shape& shape) {
  Tensor result(backend, shape, DTypeOf<T>::value);
  backend.copy_from_host(values.data(), result);
  return result;
}

/// The code of the Error that f throws, or kOk.
template <class F>
ExitCode code_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.code();
  }
  return ExitCode::kOk;
}

}  // namespace

TEST_CASE(
    "kernels/cpu: the gradient of a convolution's bias has the same bits on any number of "
    "threads") {
  constexpr Index kImages = 24, kSide = 17, kChannels = 5;
  const Shape shape{kImages, kSide, kSide, kChannels};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Numbers expected;
    for (const int threads : {1, 2, 3}) {
      CpuBackend backend(threads);
      const Tensor x = to_tensor(backend, random_numbers(shape.elements(), 3), shape, dtype),
                   dy = to_tensor(backend, random_numbers(shape.elements(), 4), shape, dtype),
                   dweight(backend, {kChannels, 1, 1, kChannels}, DType::kFloat32),
                   dbias(backend, {kChannels}, DType::kFloat32);
      backend.conv2d_backward_weights(
          {.x = x, .dy = dy, .dweight = dweight, .dbias = dbias, .window = {}});
      if (threads == 1) expected = to_numbers(dbias);
      CHECK(to_numbers(dbias) == expected);
    }
  }
}

TEST_CASE("kernels/cpu: sums have the same bits on any number of threads") {
  for (const auto& [rows, columns] :
       {std::pair<Index, Index>{5000, 3}, {700, 129}, {100000, 1}, {40, 2000}}) {
    CAPTURE(rows);
    std::vector<double> expected;
    for (const int threads : {1, 2, 3, 5}) {
      CpuBackend backend(threads);
      const Tensor x = to_tensor(backend, random_numbers(rows * columns, 7), {rows, columns},
                                 DType::kFloat64),
                   y(backend, {columns}, DType::kFloat64);
      backend.reduce({x, y});
      std::vector<double> found(y.data<double>(), y.data<double>() + columns);
      const Tensor total(backend, {1}, DType::kFloat64);
      backend.fill(total, 0.0);
      backend.reduce(Reduce::squared_distance(x, {}, total, 0));
      found.push_back(*total.data<double>());
      if (threads == 1) expected = found;
      CHECK(found == expected);
    }
  }
}

TEST_CASE("kernels/cpu: memory is aligned, counted, shared by threads, and its end is an error") {
  CpuBackend backend(1);
  for (const std::size_t bytes : {0ul, 1ul, 64ul, 4097ul, 3ul << 20}) {
    const auto storage = backend.allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(storage->data()) % 64 == 0);
    CHECK(storage->bytes() == bytes);
    if (bytes >= cpu::CachingAllocator::kLarge)
      CHECK(reinterpret_cast<std::uintptr_t>(storage->data()) % 4096 == 0);
  }
  for (std::size_t bytes = 1; bytes < 100000; bytes += 37) {
    const std::size_t size = cpu::CachingAllocator::size_class(bytes);
    CHECK(size >= bytes);
    CHECK(size % 64 == 0);
    if (bytes > 512) CHECK(size <= bytes + bytes / 8 + 64);
  }
  CHECK(code_of([&] { backend.allocate(std::size_t{1} << 60); }) == ExitCode::kMemory);
  CHECK(code_of([&] { backend.allocate(std::numeric_limits<std::size_t>::max()); }) ==
        ExitCode::kMemory);

  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&backend, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto storage = backend.allocate(static_cast<std::size_t>(64 + (i * 131 + t) % 5000));
        storage->data()[0] = std::byte{static_cast<unsigned char>(t)};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(backend.memory_stats().in_use == 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // with which each block is its own
TEST_CASE("kernels/cpu: gaps of large blocks serve blocks of any size, and grow together again") {
  cpu::CachingAllocator allocator;
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  std::vector<cpu::CachingAllocator::Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocator.take(8 * kMiB));  // a segment
  const std::uint64_t asked = allocator.stats().system_allocations;
  CHECK(asked == 1);
  std::byte* const third = blocks[3].data;
  allocator.give_back(blocks[3]);
  allocator.give_back(blocks[5]);
  allocator.give_back(blocks[4]);
  const auto large = allocator.take(24 * kMiB);
  CHECK(large.data == third);
  allocator.give_back(blocks[7]);
  const auto a = allocator.take(3 * kMiB), b = allocator.take(5 * kMiB - 100);
  CHECK(a.data == blocks[7].data);
  CHECK(b.data == a.data + 3 * kMiB);
  CHECK(b.size == 5 * kMiB);
  CHECK(allocator.stats().system_allocations == asked);
  CHECK(allocator.stats().in_use == 64 * kMiB);
  // Blocks of many sizes at random, each with its own number: none lies in another.
  for (const auto& block : {large, a, b, blocks[0], blocks[1], blocks[2], blocks[6]})
    allocator.give_back(block);
  std::vector<cpu::CachingAllocator::Block> held(40);
  std::uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    cpu::CachingAllocator::Block& block = held[(state >> 33) % held.size()];
    if (block.data) {
      CHECK(block.data[0] == std::byte{1});
      CHECK(block.data[block.size - 1] == std::byte{1});
      block.data[0] = block.data[block.size - 1] = std::byte{0};
      allocator.give_back(std::exchange(block, {}));
    } else {
      block = allocator.take(kMiB + (state >> 40) % (9 * kMiB));
      CHECK(block.data[0] != std::byte{1});
      CHECK(block.data[block.size - 1] != std::byte{1});
      block.data[0] = block.data[block.size - 1] = std::byte{1};
    }
  }
  for (cpu::CachingAllocator::Block& block : held)
    if (block.data) allocator.give_back(block);
  CHECK(allocator.stats().in_use == 0);
  CHECK(allocator.take(60 * kMiB).data != nullptr);
}
#endif

TEST_CASE("kernels/cpu: a storage outlives nothing it needs") {
  Tensor tensor;
  {
    CpuBackend backend(1);
    tensor = Tensor(backend, {1000}, DType::kFloat32);
  }
  tensor = Tensor();  // gives its block back to an allocator that is still there
  CHECK(!tensor);
}

TEST_CASE(
    "kernels/cpu: the statistics of channels far from zero do not cancel, alone and in a whole "
    "batch "
    "norm") {
  constexpr Index kRows = 30000, kChannels = 6;
  Numbers values = random_numbers(kRows * kChannels, 1);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(static_cast<float>(1000.0 + values[i]));
    if (i % kChannels == 2) sum += values[i];
  }
  const double mean = sum / kRows;
  for (std::size_t i = 2; i < values.size(); i += kChannels)
    squares += (values[i] - mean) * (values[i] - mean);
  for (const cpu::Isa isa : instruction_sets()) {
    for (const int threads : {1, 3}) {
      CpuBackend backend(threads, isa);
      const Tensor x = to_tensor(backend, values, {kRows, kChannels}, DType::kFloat32);
      const auto statistics_of = [&](const Tensor& y) {
        const Tensor m(backend, {kChannels}, DType::kFloat32),
            inv(backend, {kChannels}, DType::kFloat32);
        backend.batch_norm_forward({.x = x, .y = y, .saved_mean = m, .saved_inv_std = inv});
        CHECK(m.span<float>()[2] == doctest::Approx(mean).epsilon(2e-7));
        CHECK(inv.span<float>()[2] ==
              doctest::Approx(1.0 / std::sqrt(squares / kRows + 1e-5)).epsilon(1e-5));
        return std::pair(to_numbers(m), to_numbers(inv));
      };
      CHECK(statistics_of({}) == statistics_of(Tensor(backend, x.shape(), DType::kFloat32)));
    }
  }
}

TEST_CASE(
    "kernels/cpu: from sums to a batch norm without variance, with one rounded below zero, and "
    "with NaN") {
  CpuBackend backend(1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const auto vector = [&](const Numbers& numbers) {
      return to_tensor(backend, numbers, {3}, dtype);
    };
    const auto sums = [&](const Numbers& numbers) {
      return to_tensor(backend, numbers, {3}, DType::kFloat64);
    };
    BatchNormFinish args{.sum = sums({20, 0.4, std::nan("")}),
                         .square_sum = sums({100, 0.0399, 1})};
    args.running_mean = vector({1, 1, 1});
    args.running_var = vector({2, 2, 2});
    args.saved_mean = vector({0, 0, 0});
    args.saved_inv_std = vector({0, 0, 0});
    args.count = 4;
    args.eps = 0.25;
    args.momentum = 0.5;
    backend.batch_norm_finish(args);
    const double nan = std::nan("");  // divergence shows
    CHECK(distance(to_numbers(args.saved_mean), {5, 0.1, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.saved_inv_std), {2, 2, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.running_mean), {3, 0.55, nan}) < 1e-6);
    CHECK(distance(to_numbers(args.running_var), {1, 1, nan}) < 1e-6);
    args.count = 1;
    backend.batch_norm_finish(args);
    CHECK(std::isfinite(to_numbers(args.running_var)[0]));
  }
}

TEST_CASE(
    "kernels/cpu: batch norm of large tensors, and in place, gives the bits of small pieces") {
  // Large results are written past the caches, results over an input are not.
  for (const cpu::Isa isa : instruction_sets()) {
    for (const auto& [dtype, channels] :
         std::initializer_list<std::pair<DType, Index>>{{DType::kFloat32, 16},
                                                        {DType::kFloat32, 3},
                                                        {DType::kFloat32, 160},
                                                        {DType::kBFloat16, 16},
                                                        {DType::kBFloat16, 3}}) {
      CAPTURE(name_of(dtype));
      CAPTURE(channels);
      CpuBackend backend(2, isa);
      const Index rows = (Index{4} << 20) / static_cast<Index>(size_of(dtype)) / channels + 37;
      const Shape shape{rows, channels};
      const auto random = [&, dtype = dtype, channels = channels](std::uint64_t seed) {
        return to_tensor(backend, random_numbers(rows * channels, seed), shape, dtype);
      };
      const auto vector = [&, channels = channels](std::uint64_t seed) {
        return to_tensor(backend, random_numbers(channels, seed), {channels}, DType::kFloat32);
      };
      const Tensor x = random(1), residual = random(2), dy = random(3), gamma = vector(4),
                   beta = vector(5), mean = vector(6), y(backend, shape, dtype);
      const Tensor variance(backend, {channels}, DType::kFloat32),
          inv(backend, {channels}, DType::kFloat32), m(backend, {channels}, DType::kFloat32);
      backend.fill(variance, 0.5);
      BatchNormForward forward{.x = x,
                               .residual = residual,
                               .gamma = gamma,
                               .beta = beta,
                               .y = y,
                               .running_mean = mean,
                               .running_var = variance,
                               .saved_mean = m,
                               .saved_inv_std = inv,
                               .training = false,
                               .rectifier = {.relu = true}};
      backend.batch_norm_forward(forward);
      const Numbers whole = to_numbers(y);
      backend.fill(y, -1.0);
      for (Index r = 0; r < rows; r += 7777) {
        const Shape piece{std::min<Index>(7777, rows - r), channels};
        forward.x = x.slice(r * channels, piece);
        forward.residual = residual.slice(r * channels, piece);
        forward.y = y.slice(r * channels, piece);
        backend.batch_norm_forward(forward);
      }
      CHECK(to_numbers(y) == whole);

      const Tensor dx(backend, shape, dtype);
      BatchNormBackward backward{.x = x,
                                 .y = y,
                                 .dy = dy,
                                 .gamma = gamma,
                                 .saved_mean = m,
                                 .saved_inv_std = inv,
                                 .dx = dx,
                                 .rectifier = {.relu = true}};
      backend.batch_norm_backward(backward);
      const Numbers expected = to_numbers(dx), kept = to_numbers(dy);
      backward.dx = dy;
      backend.batch_norm_backward(backward);
      CHECK(to_numbers(dy) == expected);
      backend.copy_from_host(to_tensor(backend, kept, shape, dtype).raw(), dy);
      backward.dresidual = dy;
      backward.dx = x;
      backend.batch_norm_backward(backward);
      CHECK(to_numbers(x) == expected);
    }
  }
}

TEST_CASE("kernels/cpu: activations at their ends") {
  CpuBackend backend(1);
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {-200.0f, -88.0f, -5.0f,  -0.0f, 1e-20f,
                                     5.0f,    88.0f,  200.0f, inf,   nan};
  const Tensor x = tensor_of<float>(backend, values, {10}), y(backend, {10}, DType::kFloat32);
  backend.map({MapFunction::kSilu, x, y});
  for (std::size_t i = 0; i < 8; ++i) {
    const double v = static_cast<double>(values[i]);
    CHECK(static_cast<double>(y.span<float>()[i]) ==
          doctest::Approx(v / (1.0 + std::exp(-v))).epsilon(1e-6));
  }
  CHECK(y.span<float>()[8] == inf);
  CHECK(std::isnan(y.span<float>()[9]));
  backend.map({MapFunction::kGelu, x, y});
  CHECK(y.span<float>()[0] == 0.0f);
  CHECK(y.span<float>()[7] == 200.0f);
  CHECK(std::isnan(y.span<float>()[9]));
  backend.map({MapFunction::kRelu, x, y});
  CHECK(y.span<float>()[2] == 0.0f);
  CHECK(std::isnan(y.span<float>()[9]));
}

TEST_CASE("kernels/cpu: a message of int8, byte by byte") {
  CpuBackend backend(1);
  // s = 2; 2.5 goes to the even 2
  const Tensor x = tensor_of<float>(backend, {-254.0f, 2.0f, 5.0f, 0.0f}, {4});
  const Tensor message(backend, {message_bytes(Code::kInt8, DType::kFloat32, 4, 0)}, DType::kUInt8);
  backend.encode({.x = x, .message = message, .code = Code::kInt8});
  const auto bytes = message.span<std::uint8_t>();
  CHECK(std::vector<int>(bytes.begin(), bytes.end()) ==
        std::vector<int>{0x81, 1, 2, 0, 0, 0, 0, 0x40});
}

TEST_CASE("kernels/cpu: what it cannot do is one clear error") {
  CpuBackend backend(1);
  const Tensor half(backend, {2, 3}, DType::kBFloat16), x(backend, {2, 3}, DType::kFloat32),
      whole(backend, {2, 3}, DType::kInt32);
  CHECK(code_of([&] {
          backend.map({MapFunction::kAdd, whole, whole, whole});
        }) == ExitCode::kInternal);
  CHECK(code_of([&] { backend.map({MapFunction::kAdd, half, x, x}); }) == ExitCode::kInternal);
  const Tensor label = tensor_of<std::int32_t>(backend, {3, 0}, {2}),
               loss(backend, Shape{}, DType::kFloat32);
  CHECK(code_of([&] { backend.target_loss({.x = x, .targets = label, .loss = loss}); }) ==
        ExitCode::kUsage);
  CHECK(code_of([] { CpuBackend none(0); }) == ExitCode::kUsage);
  backend.fill(half, 1.5);
  const Tensor other(backend, {2, 3}, DType::kBFloat16);
  backend.copy(half, other);
  CHECK(static_cast<float>(other.span<BFloat16>()[5]) == 1.5f);
}

TEST_CASE("kernels/open_backend: devices open, and a missing one says what to do") {
  CHECK(open_backend(DeviceType::kCpu, 2)->device() == DeviceType::kCpu);
  CHECK(open_backend(DeviceType::kMeta, 1)->device() == DeviceType::kMeta);
  // Where the plug-in or a GPU is missing, the error is the user's to mend.
  const ExitCode cuda = code_of([] { open_backend(DeviceType::kCuda, 1); });
  CHECK((cuda == ExitCode::kOk || cuda == ExitCode::kUsage));
  CHECK(open_backend(DeviceType::kCpu, 2)->description().find("2 threads") != std::string::npos);
}

TEST_CASE("kernels/isa: the environment lowers the instruction set, and only to names that exist") {
  const char* before = getenv("STARLING_CPU_ISA");
  const std::string saved = before ? before : "";
  setenv("STARLING_CPU_ISA", "scalar", 1);
  CHECK(cpu::detected_isa() == cpu::Isa::kScalar);
  setenv("STARLING_CPU_ISA", cpu::name_of(cpu::Isa::kAvx512), 1);
  CHECK(cpu::detected_isa() == cpu::hardware_isa());
  setenv("STARLING_CPU_ISA", "sse9", 1);
  CHECK(code_of([] { cpu::detected_isa(); }) == ExitCode::kUsage);
  setenv("STARLING_CPU_ISA", "avx2", 1);
  CHECK_FALSE(cpu::fast_bf16());
  if (before) {
    setenv("STARLING_CPU_ISA", saved.c_str(), 1);
  } else {
    unsetenv("STARLING_CPU_ISA");
  }
}

}  // namespace starling::tests
