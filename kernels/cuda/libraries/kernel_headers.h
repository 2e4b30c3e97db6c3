#pragma once

#include <span>

namespace starling::cuda {

/// What a text for NVRTC includes, by the name that it says: headers of ours, and what these need
/// of the standard library.
struct KernelHeader {
  const char* name;
  const char* text;
};
/// Made by CMake from kernel_headers.cpp.in and the headers.
std::span<const KernelHeader> kernel_headers();

}  // namespace starling::cuda
