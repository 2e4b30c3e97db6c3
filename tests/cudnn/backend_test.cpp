#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/fake_libraries.h"
#include "tests/fakes/cuda/recorder.h"

// A CUDA backend on the fake runtime with stand-ins for its libraries: what it issues, and who sees which running statistics.
namespace starling::testing {

namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;

struct Gpu {
  explicit Gpu(cuda::shim::FakeLibraries libraries = {.on = true}) {
    cuda::shim::set_libraries(libraries);
    backend = std::make_unique<cuda::CudaBackend>(0, false, false, true);
    cuda::shim::set_libraries({});
  }
  std::unique_ptr<cuda::CudaBackend> backend;
};

/// How often each kind of device work is issued by `body`.
std::vector<std::string> issued(const std::function<void()>& body) {
  cuda::shim::start_recording();
  body();
  std::vector<std::string> labels;
  for (const Call& call : cuda::shim::stop_recording()) {
    if (call.kind == CallKind::kLaunch) labels.push_back(call.label);
  }
  return labels;
}
std::int64_t count(const std::vector<std::string>& labels, const std::string& part) {
  return std::count_if(labels.begin(), labels.end(), [&](const std::string& label) { return label.find(part) != std::string::npos; });
}

Tensor numbers(Backend& backend, const Shape& shape, int seed, float least = -1.0f) {
  std::vector<float> host(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < host.size(); ++i) {
    host[i] = least + static_cast<float>((i * 2654435761u + static_cast<unsigned>(seed) * 40503u) / 7 % 17) / 8.0f;
  }
  Tensor tensor(backend, shape, DType::kFloat32);
  backend.copy_from_host(host.data(), tensor);
  return tensor;
}
std::vector<float> on_host(const Tensor& tensor) {
  std::vector<float> host(static_cast<std::size_t>(tensor.elements()));
  tensor.backend().copy_to_host(tensor, host.data());
  return host;
}

constexpr std::int64_t kImageChannels = 12;
const Shape kImage{2, 3, 3, kImageChannels};

/// A training batch norm and what belongs to it; the same numbers on every backend.
struct Norm {
  explicit Norm(Backend& backend, int seed) : backend_(backend) {
    const Shape channels{kImageChannels};
    args.x = numbers(backend, kImage, seed);
    args.gamma = numbers(backend, channels, seed + 1);
    args.beta = numbers(backend, channels, seed + 2);
    args.y = Tensor(backend, kImage, DType::kFloat32);
    args.running_mean = numbers(backend, channels, seed + 3);
    args.running_var = numbers(backend, channels, seed + 4, 1.0f);
    args.batches_tracked = Tensor(backend, {}, DType::kInt64);
    const std::int64_t before = 41;
    backend.copy_from_host(&before, args.batches_tracked);
  }
  void forward() {
    args.saved_mean = Tensor(backend_, {kImageChannels}, DType::kFloat32);
    args.saved_inv_std = Tensor(backend_, {kImageChannels}, DType::kFloat32);
    backend_.batch_norm_forward(args);
  }
  void backward() {
    const Tensor dx(backend_, kImage, DType::kFloat32), dgamma(backend_, {kImageChannels}, DType::kFloat32),
        dbeta(backend_, {kImageChannels}, DType::kFloat32);
    backend_.batch_norm_backward({.x = args.x,
                                  .dy = args.y,
                                  .gamma = args.gamma,
                                  .saved_mean = args.saved_mean,
                                  .saved_inv_std = args.saved_inv_std,
                                  .dx = dx,
                                  .dgamma = dgamma,
                                  .dbeta = dbeta});
  }
  BatchNormForward evaluation() const {
    BatchNormForward inference = args;
    inference.training = false;
    inference.y = Tensor(backend_, kImage, DType::kFloat32);
    inference.saved_mean = inference.saved_inv_std = {};
    return inference;
  }
  std::int64_t batches() const {
    std::int64_t batches = 0;
    backend_.copy_to_host(args.batches_tracked, &batches);
    return batches;
  }

  BatchNormForward args;

 private:
  Backend& backend_;
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = std::abs(a[i] - b[i]) <= 1e-5f * std::max(1.0f, std::abs(b[i]));
  return same;
}
/// `on_gpu` has what `on_cpu` has after the same passes.
void check_moved(const Norm& on_gpu, const Norm& on_cpu) {
  CHECK(close(on_host(on_gpu.args.running_mean), on_host(on_cpu.args.running_mean)));
  CHECK(close(on_host(on_gpu.args.running_var), on_host(on_cpu.args.running_var)));
  CHECK(on_gpu.batches() == on_cpu.batches());
}

Backend& reference() {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  return *backend;
}

constexpr const char* kMoves = "PendingStatistics";

}  // namespace

TEST_CASE("cudnn/backend: one launch moves the running statistics of all norms of a forward pass, in any number") {
  for (const int norms : {1, 3, 55, 60, 120}) {
    CAPTURE(norms);
    Gpu gpu;
    std::vector<Norm> ours, theirs;
    for (int i = 0; i < norms; ++i) {
      ours.emplace_back(*gpu.backend, i);
      theirs.emplace_back(reference(), i);
    }
    const Tensor x = numbers(*gpu.backend, kImage, 1), weight = numbers(*gpu.backend, {kImageChannels, 3, 3, kImageChannels}, 2),
                 y(*gpu.backend, kImage, DType::kFloat32);
    const std::vector<std::string> labels = issued([&] {
      for (Norm& norm : ours) {
        // What stands between two norms of a network.
        gpu.backend->conv2d_forward({.x = x, .weight = weight, .bias = {}, .y = y, .window = {.kernel = {3, 3}, .padding = {1, 1}}});
        norm.forward();
        gpu.backend->activation_forward({.kind = Activation::kRelu, .x = y, .y = y});
        gpu.backend->add({.a = x, .b = y, .y = y});
        gpu.backend->subsample_pad_forward({.x = x, .y = y, .stride = 1, .pad_before = 0});
      }
      ours.back().backward();
    });
    CHECK(count(labels, "cudnn convolution") == norms);
    CHECK(count(labels, "cudnn batch norm") == norms + 1);
    CHECK(count(labels, kMoves) == (norms + 54) / 55);
    // Before the backward pass.
    CHECK(labels.back() == "cudnn batch norm");
    for (int i = 0; i < norms; ++i) {
      theirs[static_cast<std::size_t>(i)].forward();
      check_moved(ours[static_cast<std::size_t>(i)], theirs[static_cast<std::size_t>(i)]);
    }
  }
}

TEST_CASE("cudnn/backend: two passes through one norm move its statistics twice, one after the other") {
  Gpu gpu;
  Norm ours(*gpu.backend, 1), theirs(reference(), 1);
  const std::vector<std::string> labels = issued([&] {
    for (int pass = 0; pass < 3; ++pass) ours.forward();
    ours.backward();
  });
  CHECK(count(labels, kMoves) == 3);
  for (int pass = 0; pass < 3; ++pass) theirs.forward();
  check_moved(ours, theirs);
  // Gradient accumulation: once for each micro-batch.
  CHECK(count(issued([&] {
                for (int micro = 0; micro < 4; ++micro) {
                  ours.forward();
                  ours.backward();
                }
              }),
              kMoves) == 4);
  for (int micro = 0; micro < 4; ++micro) theirs.forward();
  check_moved(ours, theirs);
}

TEST_CASE("cudnn/backend: whoever reads running statistics right after a forward pass sees them moved") {
  using Reader = std::function<void(cuda::CudaBackend&, Norm&, Norm&)>;
  const auto same = [](const Tensor& found, const Tensor& wanted) { CHECK(close(on_host(found), on_host(wanted))); };
  const std::vector<std::pair<const char*, Reader>> readers{
      {"evaluation",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const BatchNormForward found = ours.evaluation(), wanted = theirs.evaluation();
         backend.batch_norm_forward(found);
         reference().batch_norm_forward(wanted);
         same(found.y, wanted.y);
       }},
      {"a copy to the host", [](cuda::CudaBackend&, Norm& ours, Norm& theirs) { check_moved(ours, theirs); }},
      {"a copy on the device",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const Tensor copy(backend, {kImageChannels}, DType::kFloat32);
         backend.copy(ours.args.running_mean, copy);
         same(copy, theirs.args.running_mean);
       }},
      {"a copy to pinned memory",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const auto pinned = backend.allocate_host(kImageChannels * sizeof(float));
         backend.copy_to_pinned(ours.args.running_var, pinned.get());
         const auto* found = reinterpret_cast<const float*>(pinned.get());
         CHECK(close({found, found + kImageChannels}, on_host(theirs.args.running_var)));
       }},
      {"a copy to the host later",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         std::vector<float> found(kImageChannels);
         backend.synchronize(backend.copy_to_host_later(ours.args.running_var, found.data()));
         CHECK(close(found, on_host(theirs.args.running_var)));
       }},
      {"an activation in the forward pass, though others leave them pending",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const Tensor y(backend, {kImageChannels}, DType::kFloat32), wanted(reference(), {kImageChannels}, DType::kFloat32);
         backend.activation_forward({.kind = Activation::kGelu, .x = ours.args.running_mean, .y = y});
         reference().activation_forward({.kind = Activation::kGelu, .x = theirs.args.running_mean, .y = wanted});
         same(y, wanted);
       }},
      {"a part of one as a vector of another norm",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const Tensor y(backend, {4}, DType::kFloat32), wanted(reference(), {4}, DType::kFloat32);
         backend.add({ours.args.running_mean.slice(8, {4}), ours.args.running_mean.slice(4, {4}), y});
         reference().add({theirs.args.running_mean.slice(8, {4}), theirs.args.running_mean.slice(4, {4}), wanted});
         same(y, wanted);
       }},
      {"another stream behind an event",
       [&](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         const Event done = backend.record();
         const Tensor copy(backend, {kImageChannels}, DType::kFloat32);
         const StreamScope scope(backend, StreamKind::kUpdate);
         backend.wait(done);
         backend.copy(ours.args.running_mean, copy);
         same(copy, theirs.args.running_mean);
       }},
      {"a library on the stream",
       [](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         CHECK(backend.native_stream() != nullptr);
         const float* found = ours.args.running_mean.data<float>();  // the fake device's memory is the host's
         CHECK(close({found, found + kImageChannels}, on_host(theirs.args.running_mean)));
       }},
      {"the host after a wait for everything", [](cuda::CudaBackend& backend, Norm& ours, Norm& theirs) {
         backend.synchronize();
         const float* found = ours.args.running_mean.data<float>();
         CHECK(close({found, found + kImageChannels}, on_host(theirs.args.running_mean)));
       }}};
  for (const auto& [name, read] : readers) {
    CAPTURE(name);
    Gpu gpu;
    Norm ours(*gpu.backend, 3), theirs(reference(), 3);
    theirs.forward();
    const Tensor before = numbers(*gpu.backend, {kImageChannels}, 6);
    ours.forward();
    const float* untouched = ours.args.running_mean.data<float>();
    CHECK(close({untouched, untouched + kImageChannels}, on_host(numbers(reference(), {kImageChannels}, 6))));  // still pending
    read(*gpu.backend, ours, theirs);
  }
}

TEST_CASE("cudnn/backend: an event comes after what was pending, for other streams rely on it") {
  Gpu gpu;
  Norm norm(*gpu.backend, 9);
  cuda::shim::start_recording();
  norm.forward();
  gpu.backend->record();
  const std::vector<Call> calls = cuda::shim::stop_recording();
  const auto first = [&](const std::function<bool(const Call&)>& wanted) {
    return std::find_if(calls.begin(), calls.end(), wanted) - calls.begin();
  };
  const auto move = first([](const Call& call) { return call.label.find(kMoves) != std::string::npos; });
  CHECK(move < first([](const Call& call) { return call.kind == CallKind::kRecord; }));
}

TEST_CASE("cudnn/backend: a captured pass moves the statistics at each launch; an abandoned one never, and one before it once") {
  Gpu gpu;
  cuda::CudaBackend& backend = *gpu.backend;
  Norm ours(backend, 5), theirs(reference(), 5);
  ours.forward();
  ours.backward();
  theirs.forward();
  ours.forward();  // pending as the capture begins: not of it
  theirs.forward();
  REQUIRE(backend.begin_capture({}));
  const std::vector<std::string> labels = issued([&] { ours.forward(); });
  CHECK(count(labels, kMoves) == 0);
  cuda::shim::start_recording();
  const std::unique_ptr<DeviceGraph> graph = backend.end_capture();
  const std::vector<Call> calls = cuda::shim::stop_recording();
  CHECK(std::count_if(calls.begin(), calls.end(), [](const Call& call) { return call.kind == CallKind::kLaunch; }) == 1);
  ours.args.saved_mean = ours.args.saved_inv_std = {};  // the graph's own by now
  check_moved(ours, theirs);
  for (int launch = 0; launch < 3; ++launch) {
    graph->launch({});
    theirs.forward();
  }
  check_moved(ours, theirs);
  // A launch comes after what is pending.
  ours.forward();
  graph->launch({});
  theirs.forward();
  theirs.forward();
  check_moved(ours, theirs);
  REQUIRE(backend.begin_capture({}));
  ours.forward();
  backend.abandon_capture();
  check_moved(ours, theirs);
}

TEST_CASE("cudnn/backend: without a stand-in, or where nothing can be compiled, own kernels move them in the forward pass") {
  for (const bool on : {false, true}) {
    CAPTURE(on);
    Gpu gpu({.on = on, .no_compiler = true});
    Norm ours(*gpu.backend, 7), theirs(reference(), 7);
    const std::vector<std::string> labels = issued([&] { ours.forward(); });
    CHECK(count(labels, kMoves) == 0);
    CHECK(count(labels, "cudnn") == 0);
    theirs.forward();
    check_moved(ours, theirs);
  }
}

}  // namespace starling::testing
