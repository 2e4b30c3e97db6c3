#include "kernels/cuda_libraries.h"

#include <doctest/doctest.h>

#include <string>

using starling::explain_cuda_load_error;

// With real libraries, and a version that is too old: tests/nightly/pack_gpu_test.sh.
TEST_CASE("cuda libraries: what the loader says is told with the library's name") {
  const std::string path = "/nowhere/libstarling_cuda.so";
  const auto says = [&](const std::string& error, const std::string& words) {
    const std::string line = explain_cuda_load_error(path, error);
    CAPTURE(line);
    CHECK(line.rfind(error, 0) == 0);
    CHECK(line.find(words) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  const std::string missing = ": cannot open shared object file: No such file or directory";
  says("libcudnn.so.9" + missing,
       "cuDNN is missing: install it (the Python wheel nvidia-cudnn-cu13 has it");
  says("libcublasLt.so.13" + missing, "nvidia-cublas ");
  says("libnvrtc.so.13" + missing, "nvidia-cuda-nvrtc ");
  says("libcudart.so.13" + missing, "nvidia-cuda-runtime ");
  says("libnccl.so.2" + missing, "nvidia-nccl-cu13 ");
  says(path + ": undefined symbol: ncclCommWindowRegister", "NCCL lacks it");
  says(path + ": undefined symbol: cudnnBackendInitialize", "cuDNN lacks it");
  says(path + ": undefined symbol: cublasLtMatmul, version libcublasLt.so.13", "cuBLASLt lacks it");
  says(path + ": undefined symbol: cudaGraphAddNode, version libcudart.so.13",
       "the CUDA runtime lacks it");
  // What is not CUDA's stays as it is.
  for (const std::string& other : {path + ": undefined symbol: _ZN8starling5Error4whatEv",
                                   "libfmt.so.9" + missing, path + ": file too short"}) {
    CHECK(explain_cuda_load_error(path, other) == other);
  }
}
