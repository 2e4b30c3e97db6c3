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
  /// Instead of `bytes`: returns existing memory, or generates the bytes in `buffer`; of a file
  /// that is read later (Reading), reads them. Called twice in writing, for the checksum and for
  /// the file.
  std::function<std::span<const std::byte>(std::vector<std::byte>& buffer)> source = {};
  /// With `source`, of a file that is read later: reads the bytes for each_piece().
  std::function<void(const std::function<void(std::span<const std::byte>)>& use)> pieces = {};
};

struct SafetensorsFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  /// For reading: shapes of tensors that were left out, as far as they can be represented.
  std::map<std::string, Shape> left_out = {};
};

/// Checksums (core/checksum.h) of a file's header and tensors when it was written, to detect
/// changes.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string header;
  std::map<std::string, std::string> tensors;
};

/// The bytes of a tensor, in `buffer` where it has none of its own.
std::span<const std::byte> bytes_of(const FileTensor& tensor, std::vector<std::byte>& buffer);
/// Calls use() with the bytes in their order, in pieces of whole numbers that stay in the
/// processor's cache: a large model is read faster than memory for it could be taken. What is wrong
/// with a file's bytes may be told only after the last piece.
void each_piece(const FileTensor& tensor,
                const std::function<void(std::span<const std::byte>)>& use);

/// When a file's tensors are read: at once, or each when bytes_of() or each_piece() asks for it, so
/// that no more than one is held. Then the file stays open, and what is wrong with bytes is told
/// there.
enum class Reading : std::uint8_t { kNow, kLater };

/// Reads a whole file. Validates everything before use (header length, offsets, overlaps, gaps,
/// dtype × shape = bytes, nesting, duplicate names), and never allocates more than the file's size.
/// Error(kUsage) with file, tensor and fault if it is malformed, differs from `written`, or from
/// the checksums in its metadata (add_checksums()). Tensors for which left_out(name) is true are
/// not read, and may have any dtype and rank.
SafetensorsFile read_safetensors(const std::string& path, const FileDigest* written = nullptr,
                                 const std::function<bool(const std::string&)>& left_out = {},
                                 Reading reading = Reading::kNow);

/// Whether all numbers are finite. True for dtypes other than floating point.
bool all_finite(DType dtype, std::span<const std::byte> bytes);

/// Writes atomically (AtomicFile). Write errors are Error(kOutput) with file, reason and remedy. A
/// tensor with non-finite numbers is Error(kDiverged) with its name, and no file is written. Data
/// is ordered by element size (largest first), then by name, and starts at an 8-byte boundary, so
/// that all tensors are aligned without gaps. Tensors for which left_out(name) is true are not
/// written.
FileDigest write_safetensors(const std::string& path, const SafetensorsFile& file,
                             const std::function<bool(const std::string&)>& left_out = {});

/// Checksums of the tensors, by name.
std::map<std::string, std::string> checksums_of(const SafetensorsFile& file);

/// Adds checksums of the tensors and of the other metadata to the metadata, as the entry
/// kChecksums: a JSON object {"tensors": {NAME: CHECKSUM}, "metadata": CHECKSUM}. For files that
/// users copy.
void add_checksums(SafetensorsFile& file);
inline constexpr const char* kChecksums = "starling.checksums";

/// Writes arbitrary data atomically.
void write_file_atomically(const std::string& path, const void* data, std::size_t bytes);

/// Converts between memory and file layouts: O×kH×kW×I ↔ O×I×kH×kW for kConvWeight, O×I ↔ I×O
/// for kTransposed, a plain copy otherwise (C ↔ C×1×1 for kImageScale).
Shape file_shape(const Shape& memory_shape, TensorLayout layout);
void to_file_layout(const std::byte* memory, const Shape& memory_shape, TensorLayout layout,
                    std::size_t element_size, std::byte* file);
void to_memory_layout(const std::byte* file, const Shape& memory_shape, TensorLayout layout,
                      std::size_t element_size, std::byte* memory);

}  // namespace starling
