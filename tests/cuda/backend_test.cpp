#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda_plugin.h"
#include "tests/cuda/support.h"
#include "tests/support/errors.h"

extern "C" std::uint32_t starling_cuda_open(StarlingCudaOpening* opening);

// Devices, streams, events and copies of the backend: on the shim, where work is done as it is
// issued, and on a GPU, where it is not.
namespace starling::tests {
namespace {

std::vector<cuda::DeviceInfo> devices_here() {
  std::string why;
  const int count = cuda::device_count(why);
  CHECK(why == "");
  std::vector<cuda::DeviceInfo> devices;
  for (int i = 0; i < count; ++i) devices.push_back(cuda::device_info(i));
  return devices;
}

struct Opened {
  std::unique_ptr<Backend> backend;
  std::string message;
};
Opened open_as(int local_rank, int local_size, bool share) {
  StarlingCudaOpening opening{};
  opening.abi = kStarlingCudaAbi;
  opening.local_rank = local_rank;
  opening.local_size = local_size;
  opening.share = share ? 1 : 0;
  opening.deterministic = 1;
  CHECK(starling_cuda_open(&opening) == kStarlingCudaAbi);
  return {std::unique_ptr<Backend>(opening.backend), opening.message};
}

/// Numbers that a kernel wrote and the host read.
bool computes(Backend& backend) {
  const Tensor x(backend, Shape{1000}, DType::kFloat32);
  backend.fill(x, 0.75);
  return host_copy(x) == std::vector<float>(1000, 0.75f);
}

std::unique_ptr<Backend> another_backend() {
  Opened opened = open_as(0, 1, false);
  REQUIRE_MESSAGE(opened.backend != nullptr, opened.message);
  return std::move(opened.backend);
}

/// How many of the tensor's numbers are not `value`.
std::size_t others_than(const Tensor& x, float value) {
  const std::vector<float> found = host_copy(x);
  return found.size() - static_cast<std::size_t>(std::count(found.begin(), found.end(), value));
}

std::string refusal(const std::function<void()>& body) {
  return test::error_of(ExitCode::kInternal, body);
}

/// Numbers enough that a kernel over them takes the device longer than the host takes to issue the
/// next.
std::int64_t many() { return on_gpu() ? std::int64_t{16} << 20 : std::int64_t{1} << 14; }

}  // namespace

TEST_CASE("cuda/backend: it says what it is, and its tensors outlive it") {
  const std::string text = gpu().description();
  CAPTURE(text);
  CHECK(gpu().device() == DeviceType::kCuda);
  CHECK(text.starts_with(gpu().info().name + ", sm_" + std::to_string(gpu().info().major)));
  CHECK(text.find("CUDA " + std::to_string(gpu().info().runtime_version / 1000)) !=
        std::string::npos);
  Tensor tensor;
  {
    const std::unique_ptr<Backend> backend = another_backend();
    tensor = Tensor(*backend, Shape{5}, DType::kFloat32);
    backend->fill(tensor, 1.0);
    CHECK(backend->memory_stats().in_use == 512);
  }
  tensor = {};
  // the device still works
  CHECK(others_than(Tensor(gpu(), Shape{0}, DType::kFloat32), 0.0f) == 0);
}

TEST_CASE("cuda/backend: streams are four, and work on one waits for an event of another") {
  std::set<void*> handles;
  for (const StreamKind kind : kStreams) handles.insert(handle_of(gpu(), kind));
  CHECK(handles.size() == kStreams.size());
  CHECK(!handles.contains(nullptr));

  // One stream writes, the next one copies what was written, and only then the first writes
  // something else.
  const std::int64_t n = many();
  for (std::size_t from = 0; from < kStreams.size(); ++from) {
    const StreamKind writer = kStreams[from], reader = kStreams[(from + 1) % kStreams.size()];
    CAPTURE(from);
    const Tensor x(gpu(), Shape{n}, DType::kFloat32);
    std::vector<Tensor> copies;
    for (int round = 0; round < 5; ++round) copies.emplace_back(gpu(), Shape{n}, DType::kFloat32);
    gpu().synchronize();
    for (int round = 0; round < 5; ++round) {
      Event written, read;
      {
        const StreamScope scope(gpu(), writer);
        for (int again = 0; again < 3; ++again) gpu().fill(x, -1.0 - again);
        gpu().fill(x, 10.0 * static_cast<double>(from) + round + 1);
        written = gpu().record();
      }
      {
        const StreamScope scope(gpu(), reader);
        gpu().wait(written);
        gpu().copy(x, copies[static_cast<std::size_t>(round)]);
        read = gpu().record();
      }
      const StreamScope scope(gpu(), writer);
      gpu().wait(read);
    }
    gpu().synchronize();
    for (int round = 0; round < 5; ++round) {
      CAPTURE(round);
      CHECK(others_than(copies[static_cast<std::size_t>(round)],
                        10.0f * static_cast<float>(from) + static_cast<float>(round + 1)) == 0);
    }
  }
}

TEST_CASE(
    "cuda/backend: an event is done after the wait for it, and so is what came before it on its "
    "stream") {
  const Tensor x(gpu(), Shape{many()}, DType::kFloat32);
  CHECK(gpu().done(Event{}));
  // More than there are handles, far ahead of the device.
  std::vector<Event> events;
  for (std::size_t i = 0; i < 3 * cuda::EventRing::kHandles; ++i) {
    if (i % 16 == 0) gpu().fill(x, static_cast<double>(i) + 1.0);
    events.push_back(gpu().record());
    if (i > 0) REQUIRE(events[i].id != events[i - 1].id);
  }
  gpu().synchronize(events[100]);
  for (std::size_t i = 0; i <= 100; ++i) REQUIRE(gpu().done(events[i]));
  gpu().synchronize(events.back());
  bool all = true;
  std::thread other([&] {  // any thread may ask
    for (const Event event : events) all = all && gpu().done(event);
  });
  other.join();
  CHECK(all);
  CHECK(others_than(x, static_cast<float>((3 * cuda::EventRing::kHandles - 1) / 16 * 16) + 1.0f) ==
        0);
}

TEST_CASE("cuda/backend: the host waits for every stream") {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < kStreams.size(); ++i) {
    tensors.emplace_back(gpu(), Shape{many()}, DType::kFloat32);
    gpu().fill(tensors[i], -1.0);
  }
  const Event ready = gpu().record();
  std::vector<Event> last;
  for (std::size_t i = 0; i < kStreams.size(); ++i) {
    const StreamScope scope(gpu(), kStreams[i]);
    gpu().wait(ready);
    for (int again = 0; again < 4; ++again) gpu().fill(tensors[i], static_cast<double>(i) + again);
    last.push_back(gpu().record());
  }
  gpu().synchronize();
  for (const Event event : last) CHECK(gpu().done(event));
  for (std::size_t i = 0; i < kStreams.size(); ++i)
    CHECK(others_than(tensors[i], static_cast<float>(i + 3)) == 0);
}

TEST_CASE(
    "cuda/backend: copies take the numbers that were meant, parts of tensors too, and refuse what "
    "does not fit") {
  const Tensor x(gpu(), Shape{1000}, DType::kFloat32), y(gpu(), Shape{1000}, DType::kFloat32);
  std::vector<float> numbers(1000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  gpu().copy_from_host(numbers.data(), x);
  gpu().fill(y, -1.0);
  gpu().copy(x.slice(7, Shape{333}), y.slice(501, Shape{333}));
  gpu().copy(x.slice(0, Shape{0}), y.slice(0, Shape{0}));
  const std::vector<float> found = host_copy(y);
  for (std::size_t i = 0; i < found.size(); ++i)
    REQUIRE(found[i] == (i >= 501 && i < 834 ? numbers[i - 494] : -1.0f));
  CHECK(refusal([&] { gpu().copy(x, y.slice(0, Shape{4})); }).find("copy of 1000 fp32") !=
        std::string::npos);
  CHECK(refusal([&] { gpu().copy(x, Tensor(gpu(), Shape{1000}, DType::kFloat64)); }).find("fp64") !=
        std::string::npos);
  CHECK(refusal([&] { gpu().wait(Event{std::uint64_t{1} << 40}); }).find("never recorded") !=
        std::string::npos);
  CHECK(others_than(y.slice(0, Shape{501}), -1.0f) == 0);  // a refusal changes nothing
}

TEST_CASE("cuda/backend: two of them on one device do not mix") {
  const std::unique_ptr<Backend> other = another_backend();
  const Tensor mine(gpu(), Shape{many()}, DType::kFloat32),
      its(*other, Shape{many()}, DType::kFloat32);
  for (int i = 0; i < 10; ++i) {
    gpu().fill(mine, i);
    other->fill(its, 100.0 + i);
  }
  CHECK(host_copy(its) == std::vector<float>(static_cast<std::size_t>(many()), 109.0f));
  CHECK(others_than(mine, 9.0f) == 0);
}

TEST_CASE("cuda/open: every device that is listed says what it is") {
  const std::vector<cuda::DeviceInfo> devices = devices_here();
  REQUIRE(!devices.empty());
  for (const cuda::DeviceInfo& device : devices) {
    CAPTURE(device.name);
    CHECK(!device.name.empty());
    CHECK(device.number == static_cast<int>(&device - devices.data()));
    CHECK(device.major > 0);
    CHECK(device.multiprocessors > 0);
    CHECK(device.total_memory > std::size_t{1} << 30);
    CHECK(device.driver_version / 1000 >= device.runtime_version / 1000);
  }
}

TEST_CASE(
    "cuda/open: the plug-in's entry point gives a device that computes, to ranks that share it "
    "too") {
  const int count = static_cast<int>(devices_here().size());
  const Opened first = open_as(0, 1, false);
  REQUIRE_MESSAGE(first.backend != nullptr, first.message);
  CHECK(first.message == "");
  CHECK(first.backend->device() == DeviceType::kCuda);
  CHECK(first.backend->description() == gpu().description());
  CHECK(computes(*first.backend));
  const Opened shared = open_as(count, count + 1, true);  // device 0 again, while the first is open
  REQUIRE_MESSAGE(shared.backend != nullptr, shared.message);
  CHECK(computes(*shared.backend));
  CHECK(computes(*first.backend));
}

TEST_CASE(
    "cuda/open: more ranks than devices, and a caller of another version, are refused without a "
    "throw") {
  const int count = static_cast<int>(devices_here().size());
  const Opened many = open_as(0, count + 1, false);
  CHECK(many.backend == nullptr);
  CHECK(many.message.find("STARLING_SHARE_GPUS=1") != std::string::npos);
  CHECK(many.message.find('\n') == std::string::npos);
  StarlingCudaOpening other{};
  other.abi = kStarlingCudaAbi + 1;
  CHECK(starling_cuda_open(&other) == kStarlingCudaAbi);
  CHECK(other.backend == nullptr);
  CHECK(open_as(0, 1, false).backend != nullptr);  // a refusal leaves nothing behind
}

}  // namespace starling::tests
