#include "tests/fakes/cuda/fake_libraries.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/error.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/graph_on_cpu.h"
#include "tests/fakes/cuda/recorder.h"

namespace starling::cuda {
namespace shim {
namespace {

struct Choice {
  std::mutex mutex;
  std::optional<FakeLibraries> libraries;
};
Choice& choice() {
  static Choice one;
  return one;
}

int number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return 0;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  require(end != text && *end == '\0' && number >= 0 && number <= 100000, "shim", "{} is {}; wanted is a whole number", variable, text);
  return static_cast<int>(number);
}

FakeLibraries libraries() {
  const std::lock_guard lock(choice().mutex);
  if (choice().libraries) return *choice().libraries;
  return {.on = number_from("STARLING_SHIM_CUDNN") != 0,
          .plan_ms = number_from("STARLING_SHIM_PLAN_MS"),
          .no_compiler = number_from("STARLING_SHIM_NO_NVRTC") != 0};
}

/// Work of a library: one item of the stream's, done now or, in a capture, at each launch.
template <class Work>
void issue(StreamHandle stream, const char* label, const Work& work) {
  note_launch(stream, label);
  if (captures(stream)) {
    keep_work(stream, work);
  } else {
    work();
  }
}

constexpr int kEngines = 3;

class FakePlan final : public GraphPlan {
 public:
  FakePlan(const GraphSpec& spec, const FakeLibraries& how, std::shared_ptr<Backend> cpu, bool any)
      : spec_(spec), how_(how), cpu_(std::move(cpu)), candidates_(any ? kEngines : 0) {}

  int candidates() const override { return candidates_; }
  std::string name(int candidate) const override { return "stand-in " + std::to_string(candidate); }
  bool finalise(int, std::string& why) override {
    if (!compiled_at_run_time(spec_)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(how_.plan_ms));
    if (how_.no_compiler) why = "CUDNN_STATUS_INTERNAL_ERROR: libnvrtc could not be loaded";
    return !how_.no_compiler;
  }
  std::size_t workspace(int) const override { return kWorkspace; }

  void run(int, const Bindings& bindings, void* workspace, StreamHandle stream) override {
    issue(stream, is_convolution(spec_.kind) ? "cudnn convolution" : "cudnn batch norm", [spec = spec_, bindings, workspace, cpu = cpu_] {
      std::memset(workspace, 0xff, kWorkspace);
      carry_out(spec, bindings, *cpu);
    });
  }

  double milliseconds(StreamHandle stream, const std::function<void()>& work) override {
    host_wait_stream(stream);  // which a capture refuses, as it does on a GPU
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static constexpr std::size_t kWorkspace = 4096;
  GraphSpec spec_;
  FakeLibraries how_;
  std::shared_ptr<Backend> cpu_;
  int candidates_;
};

class FakeGraphs final : public GraphMaker {
 public:
  explicit FakeGraphs(const FakeLibraries& how) : how_(how) {}

  std::unique_ptr<GraphPlan> plan(const GraphSpec& spec, const PlanRules&, std::string& why) override {
    const bool any = !is_fused(spec.kind) || (spec.x[3] > 3 && spec.groups == 1);
    if (!any) why = "the stand-in has no engine";
    return std::make_unique<FakePlan>(spec, how_, cpu_, any);
  }
  std::string version() const override { return "a stand-in for cuDNN"; }

 private:
  FakeLibraries how_;
  std::shared_ptr<Backend> cpu_ = open_backend(DeviceType::kCpu, 1);
};

/// A tensor on memory that its owner keeps alive.
Tensor borrowed(Backend& cpu, const Tensor& from) {
  class Borrowed final : public Storage {
   public:
    Borrowed(Backend& backend, std::byte* data, std::size_t bytes) : Storage(backend, data, bytes) {}
  };
  if (!from) return {};
  return {std::make_shared<Borrowed>(cpu, from.raw(), from.bytes()), 0, from.shape(), from.dtype()};
}

class FakeBlas final : public Blas {
 public:
  bool matmul(const Matmul& args, StreamHandle stream) override {
    // What kernels/cuda/libraries/blas_lt.cpp finds no algorithm for.
    if (args.bias && args.bias.dtype() != args.c.dtype()) return false;
    if (args.relu && args.a.dtype() == DType::kFloat64) return false;
    if (args.c.elements() == 0) return true;
    if (args.a.elements() == 0) return false;
    Matmul product = args;
    for (Tensor* tensor : {&product.a, &product.b, &product.bias, &product.c}) *tensor = borrowed(*cpu_, *tensor);
    issue(stream, "cublaslt product", [product, cpu = cpu_] { multiply(product, *cpu); });
    return true;
  }
  std::string version() const override { return "a stand-in for cuBLASLt"; }

 private:
  std::shared_ptr<Backend> cpu_ = open_backend(DeviceType::kCpu, 1);
};

}  // namespace

void set_libraries(const std::optional<FakeLibraries>& libraries) {
  const std::lock_guard lock(choice().mutex);
  choice().libraries = libraries;
}

}  // namespace shim

std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces) {
  const shim::FakeLibraries how = shim::libraries();
  if (!how.on) return nullptr;
  return make_cudnn(settings, workspaces, std::make_unique<shim::FakeGraphs>(how));
}

std::unique_ptr<Blas> open_blas(const LibrarySettings&, WorkspaceSource&) {
  if (!shim::libraries().on) return nullptr;
  return std::make_unique<shim::FakeBlas>();
}

}  // namespace starling::cuda
