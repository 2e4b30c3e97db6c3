#include "tests/fakes/cuda/fake_libraries.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/operations/products.h"
#include "kernels/cuda/device/map_arguments.h"
#include "kernels/cuda/libraries/cudnn.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/fake_cudnn.h"
#include "tests/fakes/cuda/shim.h"

namespace starling::cuda {
namespace shim {
namespace {

enum class Choice { kEnvironment, kOff, kOn };
std::atomic<Choice> choice = Choice::kEnvironment;

bool has_libraries() {
  if (choice != Choice::kEnvironment) return choice == Choice::kOn;
  const char* on = std::getenv("STARLING_SHIM_CUDNN");
  return on && std::string_view(on) == "1";
}

class FakeBlas final : public Blas {
 public:
  bool matmul(const Matmul& args, StreamHandle stream) override {
    // What kernels/cuda/libraries/blas_lt.cpp finds no algorithm for.
    if (args.bias && args.bias.dtype() != args.c.dtype()) return false;
    if ((args.relu || args.row_sums) && args.a.dtype() == DType::kFloat64) return false;
    if ((args.before_gelu || args.gelu_input) && !is_low_precision(args.c.dtype())) return false;
    if (args.row_sums && args.accumulate) return false;
    if (args.c.elements() == 0) return true;
    if (args.a.elements() == 0) return false;
    const auto on_cpu = [&](const Tensor& x) {
      return x ? borrowed(*cpu_, x.raw(), x.shape(), x.dtype()) : Tensor();
    };
    Matmul product = args;
    for (View* view : {&product.a, &product.b, &product.c})
      *view = view->of(on_cpu(view->tensor()));
    for (Tensor* tensor :
         {&product.bias, &product.row_sums, &product.before_gelu, &product.gelu_input})
      *tensor = on_cpu(*tensor);
    launch_alone(
        stream, [product, cpu = cpu_] { multiply(product, *cpu); }, "cublaslt product");
    return true;
  }
  std::string version() const override { return "a stand-in for cuBLASLt"; }

 private:
  std::shared_ptr<Backend> cpu_ = open_backend(DeviceType::kCpu, 1);
};

/// The C++ compiler in place of NVRTC, with the shim's headers in place of CUDA's.
class FakeCompiler final : public Compiler {
 public:
  bool launch(const std::string& key, const std::function<std::string()>& text, unsigned blocks,
              const MapArguments& arguments, StreamHandle stream, bool capturing) override {
    static std::map<std::string, Function> kernels;
    Function& kernel = kernels[key];
    if (!kernel && !capturing) kernel = compile(text());
    if (!kernel) return false;
    launch_alone(
        stream, [kernel, blocks, arguments] { kernel(blocks, arguments); }, "compiled map");
    return true;
  }

 private:
  using Function = void (*)(unsigned blocks, const MapArguments& arguments);

  static Function compile(const std::string& text) {
    char folder[] = "/tmp/starling-map-XXXXXX";
    require(mkdtemp(folder), "test", "no folder for a kernel's text");
    const std::string path = folder, source = path + "/map.cpp", library = path + "/map.so";
    std::ofstream(source) << "#include <cuda_runtime.h>\n"
                          << text << R"(
extern "C" void run(unsigned blocks, const starling::cuda::MapArguments& arguments) {
  namespace shim = starling::cuda::shim;
  shim::grid_size.x = blocks, shim::block_size.x = starling::cuda::kThreads;
  for (shim::block_index.x = 0; shim::block_index.x < blocks; ++shim::block_index.x)
    for (shim::thread_index.x = 0; shim::thread_index.x < shim::block_size.x; ++shim::thread_index.x)
      starling::cuda::compiled_map(arguments);
}
)";
    const std::string command = std::string(STARLING_SHIM_COMPILER) +
                                " -std=c++20 -O0 -w -fPIC -shared -ffp-contract=off -I" +
                                STARLING_SHIM_SOURCES + " -I" + STARLING_SHIM_SOURCES +
                                "/tests/fakes/cuda/include " + source + " -o " + library;
    require(std::system(command.c_str()) == 0, "test", "a kernel's text does not compile:\n{}",
            text);
    void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(opened, "test", "{}", dlerror());
    std::filesystem::remove_all(path);
    return reinterpret_cast<Function>(dlsym(opened, "run"));
  }
};

}  // namespace

UsingLibraries::UsingLibraries(bool on) { choice = on ? Choice::kOn : Choice::kOff; }
UsingLibraries::~UsingLibraries() { choice = Choice::kEnvironment; }

}  // namespace shim

std::unique_ptr<Cudnn> open_cudnn(const LibrarySettings& settings, WorkspaceSource& workspaces) {
  if (!shim::has_libraries()) return nullptr;
  return make_cudnn(settings, workspaces, std::make_unique<shim::FakeGraphs>());
}

std::unique_ptr<Blas> open_blas(const LibrarySettings&, WorkspaceSource&) {
  if (!shim::has_libraries()) return nullptr;
  return std::make_unique<shim::FakeBlas>();
}

std::unique_ptr<Compiler> open_compiler(const LibrarySettings&) {
  if (shim::choice != shim::Choice::kOn) return nullptr;  // it takes a second for each kernel
  return std::make_unique<shim::FakeCompiler>();
}

}  // namespace starling::cuda
