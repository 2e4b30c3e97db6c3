#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/map.h"
#include "core/tensor.h"
#include "core/view.h"
#include "tests/core/host_backend.h"
#include "tests/support/errors.h"

using namespace starling;
using starling::test::contains;
using starling::test::error_of;
using starling::test::fails;

TEST_CASE("core/shape: sizes, elements, text, batch") {
  const Shape shape{4, 3, 2};
  CHECK(shape.rank() == 3);
  CHECK(shape.elements() == 24);
  CHECK(shape.back() == 2);
  CHECK(shape.text() == "4×3×2");
  CHECK(shape.with_batch(8) == Shape{8, 4, 3, 2});
  CHECK(shape.without_batch() == Shape{3, 2});
  CHECK(shape != Shape{4, 3, 1});
  CHECK(shape != Shape{4, 3});
  CHECK(Shape{}.elements() == 1);
  CHECK(Shape{}.text() == "scalar");
  CHECK(Shape{5, 0, 3}.elements() == 0);
  CHECK(Shape{2, 0} != Shape{2});
  CHECK(Shape{3}.without_batch() == Shape{});
}

TEST_CASE("core/shape: impossible shapes") {
  CHECK(fails(ExitCode::kInternal, "7 dimensions", [] { Shape{1, 2, 3, 4, 5, 6, 7}; }));
  CHECK(fails(ExitCode::kInternal, "-2", [] { Shape{1, -2}; }));
  CHECK(fails(ExitCode::kInternal, "no room", [] { Shape({1, 2, 3, 4, 5, 6}).with_batch(1); }));
  CHECK(fails(ExitCode::kInternal, "scalar", [] { Shape().without_batch(); }));
  CHECK(fails(ExitCode::kMemory, "larger than any memory", [] {
    return Shape({1L << 40, 1L << 40}).elements();
  }));
  CHECK(fails(ExitCode::kMemory, "larger than any memory",
              [] { return Shape({(1L << 59) + 1}).elements(); }));
}

TEST_CASE("core/tensor: views share memory, copies of handles too") {
  test::HostBackend backend;
  Tensor tensor(backend, Shape{4, 6}, DType::kFloat32);
  CHECK(tensor.bytes() == 96);
  CHECK(tensor.exclusive());
  for (int i = 0; i < 24; ++i)
    tensor.span<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i);
  const Tensor view = tensor.slice(6, Shape{2, 3});
  CHECK_FALSE(tensor.exclusive());
  CHECK(view.span<float>()[0] == 6);
  CHECK(view.span<float>().size() == 6);
  CHECK(view.slice(4, Shape{2}).span<float>()[1] == 11);
  const Tensor again = tensor.reshaped(Shape{24});
  again.span<float>()[7] = -1;
  CHECK(view.span<float>()[1] == -1);
  CHECK(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 64 == 0);
  CHECK(tensor.slice(24, Shape{0}).elements() == 0);
  CHECK(tensor.slice(23, Shape{}).span<float>()[0] == 23);
  CHECK_FALSE(Tensor());
  CHECK(Tensor().raw() == nullptr);
}

TEST_CASE("core/tensor: misuse is caught") {
  test::HostBackend backend;
  const Tensor tensor(backend, Shape{4, 6}, DType::kFloat32);
  CHECK(fails(ExitCode::kInternal, "4×6 tensor cannot be seen as 5×5", [&] {
    tensor.reshaped(Shape{5, 5});
  }));
  CHECK(fails(ExitCode::kInternal, "outside a 4×6 tensor", [&] { tensor.slice(20, Shape{5}); }));
  CHECK(fails(ExitCode::kInternal, "outside", [&] { tensor.slice(-1, Shape{2}); }));
  CHECK(fails(ExitCode::kInternal, "outside", [&] { tensor.slice(INT64_MAX, Shape{2}); }));
  CHECK(
      fails(ExitCode::kInternal, "a fp32 tensor was read as fp64", [&] { tensor.data<double>(); }));
  CHECK(fails(ExitCode::kInternal, "does not fit", [&] {
    Tensor(tensor.storage(), 8, Shape{4, 6}, DType::kFloat32);
  }));
  CHECK(fails(ExitCode::kInternal, "does not fit",
              [&] { Tensor(tensor.storage(), SIZE_MAX - 3, Shape{1}, DType::kFloat32); }));
}

TEST_CASE("core/meta backend: counts memory that it does not hold") {
  const auto backend = make_meta_backend();
  CHECK(backend->device() == DeviceType::kMeta);
  {
    const Tensor a(*backend, Shape{1000, 1000, 1000, 1000}, DType::kFloat64);
    CHECK(backend->memory_stats().in_use == 8'000'000'000'000u);
    const Tensor b = a.slice(5, Shape{10});
    CHECK(backend->memory_stats().allocations == 1);
    { const Tensor c(*backend, Shape{3}, DType::kUInt8); }
    CHECK(backend->memory_stats().in_use == 8'000'000'000'000u);
  }
  const MemoryStats stats = backend->memory_stats();
  CHECK(stats.in_use == 0);
  CHECK(stats.peak_in_use == 8'000'000'000'003u);
  CHECK(stats.allocations == 2);
  CHECK(stats.system_allocations == 0);

  CHECK(fails(ExitCode::kMemory, "more than any memory", [&] {
    const Tensor huge(*backend, Shape{1L << 58}, DType::kFloat64),
        more(*backend, Shape{1L << 58}, DType::kFloat64);
    const Tensor most(*backend, Shape{1L << 58}, DType::kFloat64);
  }));
}

TEST_CASE(
    "core/meta backend: its tensors can be computed with, but reading them is an error that says "
    "what to do") {
  const auto backend = make_meta_backend();
  const Tensor x(*backend, Shape{4}, DType::kFloat32);
  backend->fill(x, 3.0);
  backend->map({MapFunction::kAdd, x, x, x});
  std::vector<float> host(4, 7.0f);
  for (const std::function<void()>& read : std::vector<std::function<void()>>{
           [&] { x.data<float>(); }, [&] { x.span<float>(); }, [&] { x.raw(); },
           [&] { x.slice(1, Shape{2}).data<float>(); },
           [&] { backend->copy_to_host(x, host.data()); },
           [&] { backend->copy_to_host_later(x, host.data()); }}) {
    const std::string text = error_of(ExitCode::kInternal, read);
    CHECK(contains(text, "[tensor] the numbers of a"));
    CHECK(contains(text,
                   "fp32 tensor were asked for on the backend 'meta (shapes only)', where tensors "
                   "have no memory; compute with"));
  }
  CHECK(host == std::vector<float>(4, 7.0f));
  CHECK(Tensor(*backend, Shape{0}, DType::kFloat32).data<float>() == nullptr);
}

TEST_CASE("core/meta backend: storages may outlive it, threads may share it") {
  auto backend = make_meta_backend();
  Tensor left(*backend, Shape{4}, DType::kFloat32);
  backend.reset();
  left = {};

  const MemoryStats before = meta_backend().memory_stats();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 2000; ++i) {
        const StreamScope scope(meta_backend(),
                                i % 2 ? StreamKind::kUpdate : StreamKind::kCommunication);
        const Tensor a(meta_backend(), Shape{i + 1}, DType::kFloat32);
        const Tensor b = a.reshaped(Shape{1, i + 1});
        meta_backend().record();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemoryStats after = meta_backend().memory_stats();
  CHECK(after.in_use == before.in_use);
  CHECK(after.allocations == before.allocations + 8000);
  CHECK(meta_backend().stream() == StreamKind::kCompute);
}

TEST_CASE("core/view: heads of one tensor, without a copy") {
  test::HostBackend backend;
  const Tensor x(backend, {2, 5, 24}, DType::kFloat32);
  const View keys = View(x).slice(2, 8, 8).split(2, 4).transposed(1, 2);
  CHECK(keys.shape() == Shape{2, 2, 5, 4});
  CHECK(keys.first() == 8);
  CHECK(keys.stride(0) == 120);
  CHECK(keys.stride(1) == 4);
  CHECK(keys.stride(2) == 24);
  CHECK(keys.stride(3) == 1);
  CHECK(keys.reach() == 120 + 4 + 4 * 24 + 3 + 1);
  CHECK(!keys.contiguous());
  CHECK(View(x).contiguous());
  CHECK(View(x).slice(0, 1, 1).whole().shape() == Shape{1, 5, 24});
  CHECK(View(x).slice(1, 5, 0).reach() == 0);
}

TEST_CASE("core/view: what lies outside is refused") {
  test::HostBackend backend;
  const Tensor x(backend, {2, 6}, DType::kFloat32);
  CHECK(fails(ExitCode::kInternal, "4 to 7 lie outside", [&] { return View(x).slice(1, 4, 3); }));
  CHECK(fails(ExitCode::kInternal, "no dimension 2", [&] { return View(x).transposed(0, 2); }));
  CHECK(fails(ExitCode::kInternal, "no whole number of 4", [&] { return View(x).split(1, 4); }));
  CHECK(fails(ExitCode::kInternal, "lies outside", [&] { return View(x, {2, 6}, {7, 1}, 0); }));
  CHECK(fails(ExitCode::kInternal, "one piece", [&] { return View(x).slice(1, 0, 3).whole(); }));
}
