#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
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
  /// Of a file to be written, instead of bytes: gives them where they lie, or as it makes them in
  /// `room`. Asked for the checksum and for the file.
  std::function<std::span<const std::byte>(std::vector<std::byte>& room)> source = {};
};

struct SafetensorsFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  /// Shapes of tensors that were left out, where they can be read; nothing of a file to be written.
  std::map<std::string, Shape> left_out = {};
};

/// What a file was written as, for a reader to tell whether it still is that: checksums
/// (core/checksum.h) of its header and of each tensor's bytes.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string header;
  std::map<std::string, std::string> tensors;
};

/// Reads a whole file. Every length is checked before use (header length up to 2^63, offsets,
/// overlaps, gaps, dtype × shape = bytes, nesting, duplicate names); a malformed file is
/// Error(kUsage) that names file, tensor and fault. Never allocates more than the file's size. So
/// is a file that is not what `written` says, or one whose own metadata (add_checksums) say
/// something else. Tensors for whose names `left_out` says true are not read, and may be of any
/// dtype and rank.
SafetensorsFile read_safetensors(const std::string& path, const FileDigest* written = nullptr,
                                 const std::function<bool(const std::string&)>& left_out = {});

/// Whether all numbers of a tensor's bytes are finite; others than floating-point ones are.
bool all_finite(DType dtype, std::span<const std::byte> bytes);

/// Writes atomically (AtomicFile). A write error is Error(kOutput) with file, reason and remedy; a
/// tensor with a number that is not finite is Error(kDiverged) that names it, and no file is
/// written. Data lies in order of element size (largest first), then of name, from an 8-byte
/// boundary on, so that every tensor is aligned without gaps. Tensors for whose names `left_out`
/// says true are not written.
FileDigest write_safetensors(const std::string& path, const SafetensorsFile& file,
                             const std::function<bool(const std::string&)>& left_out = {});

/// The tensors' checksums, by name.
std::map<std::string, std::string> checksums_of(const SafetensorsFile& file);

/// Puts the tensors' checksums, and one of the other entries, into the metadata: the entry
/// kChecksums, a JSON object {"tensors": {NAME: CHECKSUM}, "metadata": CHECKSUM}. For files that go
/// their own ways.
void add_checksums(SafetensorsFile& file);
inline constexpr const char* kChecksums = "starling.checksums";

/// Writes text atomically in the same way.
void write_file_atomically(const std::string& path, const void* data, std::size_t bytes);

/// Converts between memory and file layouts: O×kH×kW×I ↔ O×I×kH×kW for kConvWeight, O×I ↔ I×O
/// for kTransposed, a plain copy otherwise (C ↔ C×1×1 for kImageScale).
Shape file_shape(const Shape& memory_shape, TensorLayout layout);
void to_file_layout(const std::byte* memory, const Shape& memory_shape, TensorLayout layout,
                    std::size_t element_size, std::byte* file);
void to_memory_layout(const std::byte* file, const Shape& memory_shape, TensorLayout layout,
                      std::size_t element_size, std::byte* memory);

}  // namespace starling
