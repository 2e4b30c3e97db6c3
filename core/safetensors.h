#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/parameter.h"
#include "core/shape.h"

namespace starling {

/// One tensor of a safetensors file, in the file's (PyTorch's) shape and element order.
struct FileTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::byte> bytes;
};

/// Reads a whole file. Every length is checked before use (header length up to 2^63, offsets, overlaps, gaps, dtype × shape =
/// bytes, nesting, duplicate names); a malformed file is Error(kUsage) that names file, tensor and fault. Never allocates more than the
/// file's size.
struct SafetensorsFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;
};
SafetensorsFile read_safetensors(const std::string& path);

/// Writes atomically: to PATH.tmp, fsync, rename. A write error is Error(kOutput) with file, reason and remedy. Data lies in order of
/// element size (largest first), then of name, from an 8-byte boundary on, so that every tensor is aligned without gaps.
void write_safetensors(const std::string& path, const SafetensorsFile& file);
/// Writes text atomically in the same way.
void write_file_atomically(const std::string& path, const void* data, std::size_t bytes);

/// Between memory and file layouts: O×kH×kW×I ↔ O×I×kH×kW for kConvWeight, a plain copy otherwise (C ↔ C×1×1 for kImageScale).
Shape file_shape(const Shape& memory_shape, TensorLayout layout);
void to_file_layout(const std::byte* memory, const Shape& memory_shape, TensorLayout layout, std::size_t element_size, std::byte* file);
void to_memory_layout(const std::byte* file, const Shape& memory_shape, TensorLayout layout, std::size_t element_size, std::byte* memory);

}  // namespace starling
