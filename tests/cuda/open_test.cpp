#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cuda_plugin.h"
#include "tests/cuda/support.h"

extern "C" std::uint32_t starling_cuda_open(StarlingCudaOpening* opening);

// The devices that are here, and the plug-in's entry point: on the shim's device, and on a GPU.
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

}  // namespace

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
