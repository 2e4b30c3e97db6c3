#include "core/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "core/checksum.h"
#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {

namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the file's numbers are little-endian and copied as they are");

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the format's own reader has it
constexpr const char* kMetadata = "__metadata__";
// Bytes of tensors from which on a file goes past the system's cache
constexpr std::uint64_t kPastCache = 8 << 20;
constexpr std::size_t kPiece = 128 << 10;

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr std::array kDTypes{DTypeName{DType::kFloat64, "F64"}, DTypeName{DType::kFloat32, "F32"},
                             DTypeName{DType::kFloat16, "F16"}, DTypeName{DType::kBFloat16, "BF16"},
                             DTypeName{DType::kInt64, "I64"},   DTypeName{DType::kInt32, "I32"},
                             DTypeName{DType::kUInt8, "U8"},    DTypeName{DType::kUInt8, "BOOL"}};

const char* file_name_of(DType dtype) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

/// The bytes of a shape, unless they (or any partial product of the sizes) pass 2^63.
std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> sizes, DType dtype) {
  std::int64_t product = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(product);
}

/// One file being read; every fault names it.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {
    if (!file_.fault().empty()) refuse("cannot be read: " + file_.fault());
  }

  [[noreturn]] void refuse(const std::string& message) const {
    throw Error(ExitCode::kUsage, {"safetensors", message, {}, {.file = shown(path_, 200)}});
  }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& message) const {
    const std::string name = fmt::format("tensor '{}'", shown(tensor, 100));
    throw Error(ExitCode::kUsage,
                {"safetensors", message, {}, {.file = shown(path_, 200), .key = name}});
  }
  std::uint64_t size() const { return file_.bytes(); }
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t count =
          ::pread(file_.descriptor(), at, std::min<std::uint64_t>(bytes, std::uint64_t{1} << 30),
                  static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        refuse(fmt::format("cannot be read: {}", std::generic_category().message(errno)));
      if (count == 0) refuse("became shorter while it was read");
      at += count;
      offset += static_cast<std::uint64_t>(count);
      bytes -= static_cast<std::uint64_t>(count);
    }
  }
  json header(std::uint64_t length, const FileDigest* written) const {
    std::string text(static_cast<std::size_t>(length), '\0');
    read(8, text.data(), length);
    if (written && checksum(text) != written->header) {
      refuse(fmt::format(
          "its header is not the one that was written (checksum {}, was {}); the file is damaged",
          checksum(text), shown(written->header, 16)));
    }
    if (!text.starts_with('{'))
      refuse("the header is not a JSON object; this is not a safetensors file, or it is damaged");
    try {
      return parse_json(text, path_ + ": header");
    } catch (const Error& error) {
      ErrorParts parts = error.parts();
      parts.component = "safetensors";
      throw Error(ExitCode::kUsage, std::move(parts));
    }
  }

 private:
  std::string path_;
  RegularFile file_;
};

struct Extent {
  std::uint64_t begin, end;
  std::string name;
};

std::string short_text(const json& value) {
  return shown(value.dump(-1, ' ', false, json::error_handler_t::replace), 60);
}

/// The range of a tensor's bytes.
Extent read_extent(const Reader& reader, const std::string& name, const json& entry,
                   std::uint64_t data_size) {
  if (!entry.is_object() || !entry.contains("data_offsets"))
    reader.refuse(name, "its entry has no 'data_offsets'");
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    reader.refuse(name, "data_offsets must be two whole numbers, found " + short_text(offsets));
  }
  Extent extent{offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>(), name};
  if (extent.begin > extent.end || extent.end > data_size) {
    reader.refuse(name, fmt::format("its bytes {} to {} do not lie in the {} bytes of data; the "
                                    "file is truncated or damaged",
                                    extent.begin, extent.end, data_size));
  }
  return extent;
}

/// The shape of an entry that is not read otherwise; none where it is no shape, or one too large.
std::optional<Shape> shape_of_left_out(const json& entry) {
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array() || shape->size() > Shape::kMaxRank) return {};
  std::vector<std::int64_t> sizes;
  for (const json& size : *shape) {
    if (!size.is_number_unsigned() || size > INT32_MAX) return {};
    sizes.push_back(size.get<std::int64_t>());
  }
  return Shape(std::span<const std::int64_t>(sizes));
}

/// Checks one tensor's entry; the bytes are not read yet.
FileTensor read_entry(const Reader& reader, const std::string& name, const json& entry,
                      std::uint64_t data_size, Extent& extent) {
  if (!entry.is_object())
    reader.refuse(name, "its entry must be an object, found " + short_text(entry));
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      reader.refuse(name, fmt::format("unknown key '{}'", shown(key, 60)));
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) reader.refuse(name, fmt::format("'{}' is missing", key));
  }

  FileTensor tensor;
  const json& dtype = entry["dtype"];
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeName& candidate) {
    return dtype == candidate.name;
  });
  if (known == kDTypes.end()) {
    std::string names;
    for (const DTypeName& candidate : kDTypes)
      names += (names.empty() ? "" : ", ") + std::string(candidate.name);
    reader.refuse(name, fmt::format("dtype {} is not among {}", short_text(dtype), names));
  }
  tensor.dtype = known->dtype;

  const json& shape = entry["shape"];
  if (!shape.is_array()) reader.refuse(name, "shape must be a list, found " + short_text(shape));
  if (shape.size() > Shape::kMaxRank) {
    reader.refuse(name, fmt::format("it has {} dimensions, at most {} are possible", shape.size(),
                                    static_cast<int>(Shape::kMaxRank)));
  }
  std::vector<std::int64_t> sizes;
  for (const json& size : shape) {
    if (!size.is_number_unsigned() ||
        size.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      reader.refuse(name,
                    "a size in its shape is no whole number below 2^63: " + short_text(shape));
    }
    sizes.push_back(size.get<std::int64_t>());
  }
  const auto bytes = checked_bytes(sizes, tensor.dtype);
  if (!bytes) reader.refuse(name, "its shape is too large: " + short_text(shape));
  tensor.shape = Shape(std::span<const std::int64_t>(sizes));

  extent = read_extent(reader, name, entry, data_size);
  if (extent.end - extent.begin != *bytes) {
    reader.refuse(
        name, fmt::format("shape {} of {} takes {} bytes, its offsets say {}", tensor.shape.text(),
                          known->name, *bytes, extent.end - extent.begin));
  }
  return tensor;
}

/// The extents must cover the data exactly, without gaps or overlaps.
void check_cover(const Reader& reader, std::vector<Extent> extents, std::uint64_t data_size) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < at) reader.refuse(extent.name, "its bytes overlap those of another tensor");
    if (extent.begin > at)
      reader.refuse(extent.name,
                    fmt::format("before it {} bytes belong to no tensor", extent.begin - at));
    at = extent.end;
  }
  if (at != data_size) {
    reader.refuse(
        fmt::format("{} bytes at its end belong to no tensor; the file is damaged, or not as long "
                    "as it was written",
                    data_size - at));
  }
}

/// Checksum of all entries but that of the checksums: each name and text, ended by a zero byte.
std::string metadata_checksum(const SafetensorsFile& file) {
  std::string text;
  for (const auto& [key, value] : file.metadata) {
    if (key != kChecksums) ((text += key) += '\0') += value + '\0';
  }
  return checksum(text);
}

void check_sum(const Reader& reader, const std::string& name, const std::string& found,
               const std::string& written, const char* remedy) {
  if (found == written) return;
  reader.refuse(name,
                fmt::format("its bytes are not those that were written (checksum {}, was {}); {}",
                            found, shown(written, 16), remedy));
}

constexpr const char* kRemedy =
    "the file is damaged, or a program that changed it left the metadata's entry "
    "starling.checksums as it was, which it should drop";

/// Checks a file by what it says of itself; the tensors' checksums, where it has some.
std::map<std::string, std::string> check_own(const Reader& reader, const SafetensorsFile& file) {
  std::map<std::string, std::string> sums;
  const auto entry = file.metadata.find(kChecksums);
  if (entry == file.metadata.end()) return sums;
  const json own = json::parse(entry->second, nullptr, false);
  if (!own.is_object() || !own.contains("tensors") || !own["tensors"].is_object() ||
      !own.contains("metadata")) {
    reader.refuse(
        fmt::format("__metadata__ '{}' is no object of checksums; {}", kChecksums, kRemedy));
  }
  for (const auto& [name, tensor] : file.tensors) {
    const auto written = own["tensors"].find(name);
    if (written == own["tensors"].end() || !written->is_string()) {
      reader.refuse(name, fmt::format("its metadata have no checksum of it; {}", kRemedy));
    }
    sums[name] = written->get<std::string>();
  }
  if (own["metadata"] != metadata_checksum(file))
    reader.refuse(fmt::format("__metadata__ are not those that were written; {}", kRemedy));
  return sums;
}

SafetensorsFile read_checked(const std::string& path, const FileDigest* written,
                             const std::function<bool(const std::string&)>& left_out,
                             Reading reading) {
  const auto shared = std::make_shared<const Reader>(path);
  const Reader& reader = *shared;
  std::uint64_t header_size = 0;
  if (written && reader.size() != written->bytes) {
    reader.refuse(fmt::format("has {} bytes, {} were written; the file is damaged", reader.size(),
                              written->bytes));
  }
  if (reader.size() < 8)
    reader.refuse(fmt::format("{} bytes are too few for a safetensors file", reader.size()));
  reader.read(0, &header_size, 8);
  // What users of PyTorch have at hand: torch.save writes a zip archive, and did write a pickle.
  const bool archive = (header_size & 0xffffffff) == 0x04034b50;
  const bool pickle =
      (header_size & 0xff) == 0x80 && (header_size >> 8 & 0xff) <= 5 && header_size > kMaxHeader;
  if (archive || pickle) {
    reader.refuse(
        "is what torch.save writes, not a safetensors file; save it with "
        "safetensors.torch.save_file(model.state_dict(), FILE)");
  }
  if (std::memcmp(&header_size, "version ", sizeof header_size) == 0)
    reader.refuse("is a pointer of Git LFS to the file; fetch it (git lfs pull)");
  if (header_size > reader.size() - 8) {
    reader.refuse(
        fmt::format("the header says to be {} bytes long, the file has {}; it is truncated, or not "
                    "a safetensors file",
                    header_size, reader.size() - 8));
  }
  if (header_size > kMaxHeader)
    reader.refuse(fmt::format("a header of {} bytes is too long, at most {} are allowed",
                              header_size, kMaxHeader));
  const std::uint64_t data_size = reader.size() - 8 - header_size;
  const json header = reader.header(header_size, written);

  SafetensorsFile file;
  std::vector<Extent> extents, left;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      if (!entry.is_object())
        reader.refuse("__metadata__ must be an object of strings, found " + short_text(entry));
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string())
          reader.refuse(fmt::format("__metadata__ '{}' must be a string, found {}", shown(key, 60),
                                    short_text(value)));
        file.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    if (left_out && left_out(name)) {
      left.push_back(read_extent(reader, name, entry, data_size));
      if (const auto shape = shape_of_left_out(entry)) file.left_out.emplace(name, *shape);
      continue;
    }
    Extent extent;
    file.tensors[name] = read_entry(reader, name, entry, data_size, extent);
    extents.push_back(std::move(extent));
  }
  left.insert(left.end(), extents.begin(), extents.end());
  check_cover(reader, std::move(left), data_size);
  const std::map<std::string, std::string> sums =
      written ? written->tensors : check_own(reader, file);
  // Memory is taken only now, so that no entry makes us take memory for bytes that another one
  // claims too.
  for (const Extent& extent : extents) {
    std::optional<std::string> sum;
    if (const auto known = sums.find(extent.name); written || known != sums.end())
      sum = known == sums.end() ? "" : known->second;
    const std::uint64_t begin = 8 + header_size + extent.begin;
    const char* const remedy = written ? "the file is damaged" : kRemedy;
    const auto read = [shared, extent, begin, sum,
                       remedy](std::vector<std::byte>& bytes) -> std::span<const std::byte> {
      bytes.resize(static_cast<std::size_t>(extent.end - extent.begin));
      shared->read(begin, bytes.data(), bytes.size());
      if (sum) check_sum(*shared, extent.name, checksum(bytes.data(), bytes.size()), *sum, remedy);
      return bytes;
    };
    FileTensor& tensor = file.tensors[extent.name];
    if (reading == Reading::kNow) {
      read(tensor.bytes);
      continue;
    }
    tensor.source = read;
    tensor.pieces = [shared, extent, begin, sum, remedy](const auto& use) {
      std::vector<std::byte> piece(kPiece);
      ChecksumOfPieces found;
      const std::uint64_t bytes = extent.end - extent.begin;
      for (std::uint64_t at = 0; at < bytes; at += kPiece) {
        piece.resize(std::min<std::uint64_t>(kPiece, bytes - at));
        shared->read(begin + at, piece.data(), piece.size());
        if (sum) found.add(piece.data(), piece.size());
        use(std::span<const std::byte>(piece));
      }
      if (sum) check_sum(*shared, extent.name, found.take(), *sum, remedy);
    };
  }
  return file;
}

}  // namespace

SafetensorsFile read_safetensors(const std::string& path, const FileDigest* written,
                                 const std::function<bool(const std::string&)>& left_out,
                                 Reading reading) {
  try {
    return read_checked(path, written, left_out, reading);
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, "safetensors", {.file = shown(path, 200)},
         "not enough memory to read it; use a machine with more");
  }
}

namespace {

/// An exponent of ones alone is infinity or NaN: with one more at its lowest place it carries into
/// the sign's. All numbers of a word at once.
template <class Bits>
bool no_exponent_of_ones(std::span<const std::byte> bytes, Bits ones) {
  constexpr std::uint64_t kEach = UINT64_MAX / std::numeric_limits<Bits>::max();
  const std::uint64_t exponents = kEach * ones, lowest = exponents & ~(exponents << 1),
                      signs = kEach << (8 * sizeof(Bits) - 1);
  std::uint64_t found = 0, word = 0;
  std::size_t at = 0;
  for (; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    found |= (word & exponents) + lowest;
  }
  word = 0;
  if (at < bytes.size()) std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return ((found | ((word & exponents) + lowest)) & signs) == 0;
}

}  // namespace

bool all_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kFloat64: return no_exponent_of_ones(bytes, std::uint64_t{0x7ff0} << 48);
    case DType::kFloat32: return no_exponent_of_ones(bytes, std::uint32_t{0x7f800000});
    case DType::kBFloat16: return no_exponent_of_ones(bytes, std::uint16_t{0x7f80});
    case DType::kFloat16: return no_exponent_of_ones(bytes, std::uint16_t{0x7c00});
    default: return true;
  }
}

std::span<const std::byte> bytes_of(const FileTensor& tensor, std::vector<std::byte>& buffer) {
  return tensor.source ? tensor.source(buffer) : std::span<const std::byte>(tensor.bytes);
}

void each_piece(const FileTensor& tensor,
                const std::function<void(std::span<const std::byte>)>& use) {
  if (tensor.pieces) return tensor.pieces(use);
  std::vector<std::byte> buffer;
  const std::span<const std::byte> bytes = bytes_of(tensor, buffer);
  for (std::size_t at = 0; at < bytes.size(); at += kPiece)
    use(bytes.subspan(at, std::min(kPiece, bytes.size() - at)));
}

FileDigest write_safetensors(const std::string& path, const SafetensorsFile& file,
                             const std::function<bool(const std::string&)>& left_out) {
  // The format allows no gaps, so aligned tensors must be in order of element size first (as its
  // own writer does it), then of name.
  std::vector<const std::pair<const std::string, FileTensor>*> order;
  for (const auto& entry : file.tensors) {
    if (!left_out || !left_out(entry.first)) order.push_back(&entry);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->second.dtype) > size_of(b->second.dtype);
  });

  json header = json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::uint64_t offset = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    require(name != kMetadata, "safetensors", "a tensor cannot be called {}", kMetadata);
    const auto needed = checked_bytes(tensor.shape.sizes(), tensor.dtype);
    const std::uint64_t bytes = tensor.source ? needed.value_or(0) : tensor.bytes.size();
    require(needed == bytes, "safetensors", "tensor '{}': shape {} of {} does not take {} bytes",
            name, tensor.shape.text(), name_of(tensor.dtype), bytes);
    header[name] = {{"dtype", file_name_of(tensor.dtype)},
                    {"shape", tensor.shape.sizes()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail(ExitCode::kInternal, "safetensors", {.file = shown(path, 200)},
         "a name or a metadata text is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data starts 8-byte aligned
  const auto length = static_cast<std::uint64_t>(text.size());

  FileDigest digest{sizeof length + text.size(), checksum(text), {}};
  AtomicFile output(path,
                    offset >= kPastCache ? AtomicFile::Cache::kPast : AtomicFile::Cache::kThrough);
  output.write(&length, sizeof length);
  output.write(text.data(), text.size());
  ChecksumOfPieces sum;
  std::vector<std::byte> buffer;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    const std::span<const std::byte> bytes = bytes_of(tensor, buffer);
    digest.bytes += bytes.size();
    // Piece by piece: what was read for the checksum is still in the processor's cache when it is
    // written.
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      const std::size_t count = std::min(kPiece, bytes.size() - at);
      sum.add(bytes.data() + at, count);
      if (!all_finite(tensor.dtype, bytes.subspan(at, count))) {
        fail(ExitCode::kDiverged, "safetensors", {.file = shown(path, 200)},
             "is not written: tensor '{}' holds numbers that are not finite; use a smaller "
             "learning rate, a longer warm-up or clip_norm",
             name);
      }
      output.write(bytes.data() + at, count);
    }
    digest.tensors[name] = sum.take();
  }
  output.commit();
  return digest;
}

std::map<std::string, std::string> checksums_of(const SafetensorsFile& file) {
  std::map<std::string, std::string> sums;
  std::vector<std::byte> buffer;
  for (const auto& [name, tensor] : file.tensors) {
    const std::span<const std::byte> bytes = bytes_of(tensor, buffer);
    sums[name] = checksum(bytes.data(), bytes.size());
  }
  return sums;
}

void add_checksums(SafetensorsFile& file) {
  file.metadata[kChecksums] =
      json{{"tensors", checksums_of(file)}, {"metadata", metadata_checksum(file)}}.dump();
}

// ---------------------------------------------------------------- layouts

namespace {

/// [outer][a][b] → [outer][b][a], elements of `size` bytes.
template <std::size_t kSize>
void swap_inner(const std::byte* from, std::int64_t outer, std::int64_t a, std::int64_t b,
                std::byte* to) {
  for (std::int64_t o = 0; o < outer; ++o) {
    const std::byte* source = from + static_cast<std::size_t>(o * a * b) * kSize;
    std::byte* target = to + static_cast<std::size_t>(o * a * b) * kSize;
    constexpr std::int64_t kTile = 16;  // cache lines that are written cyclically
    for (std::int64_t first = 0; first < b; first += kTile) {
      for (std::int64_t i = 0; i < a; ++i) {
        for (std::int64_t j = first; j < std::min(b, first + kTile); ++j) {
          std::memcpy(target + static_cast<std::size_t>(j * a + i) * kSize,
                      source + static_cast<std::size_t>(i * b + j) * kSize, kSize);
        }
      }
    }
  }
}

void swap_inner(const std::byte* from, std::int64_t outer, std::int64_t a, std::int64_t b,
                std::size_t size, std::byte* to) {
  switch (size) {
    case 1: return swap_inner<1>(from, outer, a, b, to);
    case 2: return swap_inner<2>(from, outer, a, b, to);
    case 4: return swap_inner<4>(from, outer, a, b, to);
    case 8: return swap_inner<8>(from, outer, a, b, to);
    default: require(false, "safetensors", "elements of {} bytes have no layout", size);
  }
}

/// Matrices, each of which lies with rows for columns in a file: none, where the layout is a plain
/// copy.
struct Swapped {
  std::int64_t count = 0, rows = 0, columns = 0;
};
Swapped swapped(const Shape& memory, TensorLayout layout) {
  if (layout != TensorLayout::kConvWeight && layout != TensorLayout::kTransposed) return {};
  const int rank = layout == TensorLayout::kConvWeight ? 4 : 2;
  require(memory.rank() == rank, "safetensors", "a {} has {} dimensions, found {}",
          rank == 4 ? "convolution's weight" : "matrix", rank, memory.text());
  if (rank == 2) return {1, memory[0], memory[1]};
  return {memory[0], memory[1] * memory[2], memory[3]};
}

void copy_plain(const std::byte* from, const Shape& shape, std::size_t size, std::byte* to) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size;
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

Shape file_shape(const Shape& memory_shape, TensorLayout layout) {
  if (layout == TensorLayout::kPlain) return memory_shape;
  if (layout == TensorLayout::kImageScale) {
    require(memory_shape.rank() == 1, "safetensors",
            "a scale of channels is {}, not one number a channel", memory_shape.text());
    return {memory_shape[0], 1, 1};
  }
  (void)swapped(memory_shape, layout);
  if (layout == TensorLayout::kTransposed) return {memory_shape[1], memory_shape[0]};
  return {memory_shape[0], memory_shape[3], memory_shape[1], memory_shape[2]};
}

void to_file_layout(const std::byte* memory, const Shape& memory_shape, TensorLayout layout,
                    std::size_t element_size, std::byte* file) {
  const Swapped part = swapped(memory_shape, layout);
  if (part.count == 0) return copy_plain(memory, memory_shape, element_size, file);
  swap_inner(memory, part.count, part.rows, part.columns, element_size, file);
}

void to_memory_layout(const std::byte* file, const Shape& memory_shape, TensorLayout layout,
                      std::size_t element_size, std::byte* memory) {
  const Swapped part = swapped(memory_shape, layout);
  if (part.count == 0) return copy_plain(file, memory_shape, element_size, memory);
  swap_inner(file, part.count, part.columns, part.rows, element_size, memory);
}

}  // namespace starling
