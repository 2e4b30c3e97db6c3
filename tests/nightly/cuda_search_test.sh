#!/usr/bin/env bash
# cmake/StarlingCuda.cmake with CUDA's libraries in several places: a toolkit that lacks some, and
# Python packages that have them. nvcc and the CUDA runtime are real, cuBLASLt, NVRTC and cuDNN are
# made up. 77 where there is no nvcc.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
cmake=${STARLING_CMAKE:-$(command -v cmake)}
# nvcc in the PATH may be a script that starts the one of a toolkit: nvcc itself says where its
# toolkit lies.
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) && real=$({ "$nvcc" -v nothing.cu || true; } 2>&1 | sed -n 's/^#\$ TOP=//p') && [ -x "$real/bin/nvcc" ] &&
  [ -f "$real/include/cuda_runtime.h" ] || {
  echo "skipped: no nvcc with a toolkit of its own here"
  exit 77
}
real=$(realpath "$real")
major=$("$nvcc" --version | sed -nE 's/^.*release ([0-9]+)\..*$/\1/p')

# A toolkit: the compiler, and of headers and libraries only the runtime's.
mkdir -p toolkit/bin toolkit/include toolkit/lib64
ln -s "$real"/bin/* toolkit/bin/ && rm toolkit/bin/nvcc toolkit/bin/nvcc.profile && cp "$real"/bin/nvcc "$real"/bin/nvcc.profile toolkit/bin/
ln -s lib64 toolkit/lib
[ ! -d "$real/nvvm" ] || ln -s "$real/nvvm" toolkit/nvvm
ln -s "$real"/include/* toolkit/include/
rm -f toolkit/include/{cublas*,nvrtc*,cudnn*,nccl*}
runtime=$(find -L "$real" -name "libcudart.so.$major" 2>/dev/null | head -1)
ln -s "$(dirname "$runtime")"/lib{cudart,cudadevrt}* toolkit/lib64/

# Wheels: FOLDER HEADER LIBRARY FUNCTION, a library with one function.
wheel() {
  mkdir -p "$1/include" "$1/lib"
  echo "extern \"C\" int $4(void);" >"$1/include/$2"
  echo "extern \"C\" int $4(void) { return 1; }" | "${CXX:-c++}" -x c++ -shared -fPIC -Wl,-soname,"$3" -o "$1/lib/$3" -
}
site=$work/site-packages
wheel "$site/nvidia/cu13" cublasLt.h "libcublasLt.so.$major" cublasLtGetVersion
wheel "$site/nvidia/cu13" nvrtc.h "libnvrtc.so.$major" nvrtcVersion
wheel "$site/nvidia/cudnn" cudnn_graph.h libcudnn.so.9 cudnnGetVersion
mkdir -p "$site/include" && touch "$site/include/cudnn_frontend.h"

mkdir project
printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(search LANGUAGES CXX)' "list(APPEND CMAKE_MODULE_PATH $root/cmake)" \
  'set(STARLING_CUDA ON)' 'set(STARLING_CUDA_ARCHITECTURES 90-real)' 'include(StarlingCuda)' 'add_library(plugin SHARED kernel.cu calls.cpp)' \
  'set_target_properties(plugin PROPERTIES CUDA_RUNTIME_LIBRARY None)' 'target_link_libraries(plugin PRIVATE starling_cuda_libraries)' \
  'target_link_options(plugin PRIVATE LINKER:--no-undefined)' >project/CMakeLists.txt
printf '%s\n' '#include <cuda_runtime.h>' '__global__ void kernel(int* out) { *out = 1; }' 'void launch(int* out) { kernel<<<1, 1>>>(out); }' >project/kernel.cu
printf '%s\n' '#include <cublasLt.h>' '#include <cuda_runtime_api.h>' '#include <cudnn_graph.h>' '#include <nvrtc.h>' 'int calls() {' '  int count = 0;' '  cudaGetDeviceCount(&count);' \
  '  return cublasLtGetVersion() + nvrtcVersion() + cudnnGetVersion() + count;' '}' >project/calls.cpp
mkdir bin && printf '#!/bin/sh\nexec %s "$@"\n' "$(python3 -c 'import sys; print(sys.executable)')" >bin/python3 && chmod +x bin/python3
# BUILD FOLDER: only our toolkit and our Python are in the PATH, and folders such as /usr/local are
# not looked into
configured() {
  env -u CUDA_HOME -u CUDA_PATH -u CUDACXX -u CMAKE_PREFIX_PATH -u LD_LIBRARY_PATH PATH="$work/toolkit/bin:$work/bin:/usr/bin:/bin" \
    PYTHONPATH="$site" "$cmake" -S project -B "$1" -DCMAKE_CXX_COMPILER="${CXX:-c++}" -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
}
linked() { # BUILD FOLDER LIBRARY...: the plug-in that is built there needs each library
  local library
  "$cmake" --build "$1" || return 1
  for library in "${@:2}"; do readelf -d "$1/libplugin.so" | grep -F "[$library]" || return 1; done
}
export cmake site work
export -f configured

parts=("libcudart.so.$major" "libcublasLt.so.$major" "libnvrtc.so.$major" libcudnn.so.9)
check "cuBLASLt, NVRTC and cuDNN in Python packages" 0 "CUDA plug-in: CUDA $major\..*, $site/nvidia/cu13/lib/libcublasLt\.so\.$major, $site/nvidia/cudnn/lib/libcudnn\.so\.9" configured one
verify "the runtime is the toolkit's" grep -q "^STARLING_CUDART_LIBRARY:FILEPATH=$work/toolkit/lib" one/CMakeCache.txt
verify "a plug-in links them" linked one "${parts[@]}"

# The compiler alone: the runtime with its headers is in a package, which has no plain libcudart.so.
mv toolkit/include/* "$site/nvidia/cu13/include/"
rm toolkit/lib64/*
ln -s "$runtime" "$(dirname "$runtime")"/lib{cudart_static,cudadevrt}.a "$site/nvidia/cu13/lib"
# The compiler's own part stays.
ln -s "$real/include/crt" toolkit/include/crt
check "the CUDA runtime in a package, too" 0 "CUDA plug-in: CUDA $major\." configured three
verify "it is taken from there" grep -q "^STARLING_CUDART_LIBRARY:FILEPATH=$site/nvidia/cu13/lib/" three/CMakeCache.txt
verify "a plug-in links it" linked three "${parts[@]}"

rm "$site/nvidia/cu13/include/cublasLt.h" "$site/nvidia/cu13/lib/libnvrtc.so.$major"
printf '#!/bin/sh\necho %s\n' "$site" >bin/python3 # whatever this machine's own Python has
check "what has no header or no library is missing, with the wheel that has it" 1 "Python wheel nvidia-cublas\\), NVRTC with its header" configured four
finish
