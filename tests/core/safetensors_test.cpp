#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "core/checksum.h"
#include "core/operations/accesses.h"
#include "core/safetensors.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"

using namespace starling;
using starling::test::contains;
using starling::test::error_of;
using starling::test::fails;

namespace {

FileTensor tensor_of(DType dtype, const Shape& shape) {
  FileTensor tensor{dtype, shape, {}};
  tensor.bytes.resize(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
    tensor.bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(dtype));
  return tensor;
}

SafetensorsFile sample() {
  SafetensorsFile file;
  file.tensors["u8"] = tensor_of(DType::kUInt8, Shape{3});
  file.tensors["conv.weight"] = tensor_of(DType::kFloat32, Shape{2, 3, 1, 1});
  file.tensors["half"] = tensor_of(DType::kFloat16, Shape{5});
  file.tensors["bf"] = tensor_of(DType::kBFloat16, Shape{1, 1});
  file.tensors["double"] = tensor_of(DType::kFloat64, Shape{});
  file.tensors["steps"] = tensor_of(DType::kInt64, Shape{});
  file.tensors["labels"] = tensor_of(DType::kInt32, Shape{2});
  file.tensors["empty"] = tensor_of(DType::kFloat32, Shape{4, 0});
  file.metadata = {{"format", "pt"}, {"öd\n", "x"}};
  return file;
}

std::string bytes_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string result(8, '\0');
  std::memcpy(result.data(), &length, 8);
  return result + header + std::string(data, 'd');
}

}  // namespace

TEST_CASE("core/safetensors: what is written is read back") {
  const test::Folder folder;
  const SafetensorsFile file = sample();
  write_safetensors(folder / "a.safetensors", file);
  CHECK(folder.files() == 1);
  const SafetensorsFile again = read_safetensors(folder / "a.safetensors");
  CHECK(again.metadata == file.metadata);
  REQUIRE(again.tensors.size() == file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    CAPTURE(name);
    const FileTensor& other = again.tensors.at(name);
    CHECK(other.dtype == tensor.dtype);
    CHECK(other.shape == tensor.shape);
    CHECK(other.bytes == tensor.bytes);
  }
  // The same content gives the same bytes, and the data starts on a multiple of 8.
  const std::string first = folder.read("a.safetensors");
  // Whether it lies there or is made when it is written.
  SafetensorsFile made = file;
  for (auto& [name, tensor] : made.tensors) {
    tensor.bytes.clear();
    tensor.source = [&from = file.tensors.at(name).bytes](std::vector<std::byte>& room) {
      room = from;
      return std::span<const std::byte>(room);
    };
  }
  SafetensorsFile summed = file;
  add_checksums(made);
  add_checksums(summed);
  CHECK(made.metadata == summed.metadata);
  made.metadata = file.metadata;
  write_safetensors(folder / "a.safetensors", made);
  CHECK(folder.read("a.safetensors") == first);
  write_safetensors(folder / "a.safetensors", again);
  CHECK(folder.read("a.safetensors") == first);
  std::uint64_t header = 0;
  std::memcpy(&header, first.data(), 8);
  CHECK(header % 8 == 0);
  write_safetensors(folder / "none.safetensors", {});
  CHECK(read_safetensors(folder / "none.safetensors").tensors.empty());
}

TEST_CASE("core/safetensors: a checksum is XXH3's in 64 bits") {
  // The reference implementation's, as its command line prints them (xxhsum -H3).
  CHECK(checksum("") == "2d06800538d394c2");
  CHECK(checksum("a") == "e6c632b61e964e1f");
}

TEST_CASE("core/safetensors: a digest finds every flipped bit, and names the tensor") {
  const test::Folder folder;
  const SafetensorsFile file = sample();
  const std::string path = folder / "a.safetensors";
  const FileDigest digest = write_safetensors(path, file);
  const std::string good = folder.read("a.safetensors");
  CHECK(digest.bytes == good.size());
  CHECK(digest.tensors.size() == file.tensors.size());
  CHECK(read_safetensors(path, &digest).metadata == file.metadata);
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (std::size_t bit = 0; bit < 8 * good.size(); bit += 5) {
    CAPTURE(bit);
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    folder.write("a.safetensors", bad);
    const std::string text = error_of(ExitCode::kUsage, [&] { read_safetensors(path, &digest); });
    CHECK(contains(text, path));
    CHECK((text.find("tensor '") != std::string::npos) == (bit / 8 >= 8 + header));
  }
  folder.write("a.safetensors", good + "x");
  CHECK(fails(ExitCode::kUsage, "were written", [&] { read_safetensors(path, &digest); }));
}

TEST_CASE("core/safetensors: a file's own checksums are checked, and what has none is read") {
  const test::Folder folder;
  SafetensorsFile file = sample();
  add_checksums(file);
  const std::string path = folder / "a.safetensors";
  write_safetensors(path, file);
  CHECK(read_safetensors(path).metadata == file.metadata);
  SafetensorsFile changed = file;
  auto& tensor = *std::find_if(changed.tensors.begin(), changed.tensors.end(),
                               [](const auto& entry) { return !entry.second.bytes.empty(); });
  tensor.second.bytes.back() ^= std::byte{0x40};
  write_safetensors(path, changed);
  CHECK(fails(ExitCode::kUsage, "tensor '" + tensor.first + "'", [&] { read_safetensors(path); }));
  changed.metadata.erase(kChecksums);  // as a program does that changes tensors
  write_safetensors(path, changed);
  CHECK(read_safetensors(path).tensors.size() == file.tensors.size());
  changed = file;
  changed.metadata["format"] = "tp";
  write_safetensors(path, changed);
  CHECK(fails(ExitCode::kUsage, "__metadata__", [&] { read_safetensors(path); }));
  for (const char* nonsense : {"", "[]", "{\"tensors\":3,\"metadata\":\"\"}"}) {
    changed = file;
    changed.metadata[kChecksums] = nonsense;
    write_safetensors(path, changed);
    CHECK(fails(ExitCode::kUsage, kChecksums, [&] { read_safetensors(path); }));
  }
}

TEST_CASE("core/safetensors: what is read in pieces are the bytes, and the last piece is checked") {
  const test::Folder folder;
  SafetensorsFile file;
  file.tensors["long"] = tensor_of(DType::kFloat64, Shape{40'001});
  file.tensors["none"] = tensor_of(DType::kFloat32, Shape{0});
  const std::vector<std::byte> own = file.tensors["long"].bytes;
  add_checksums(file);
  const std::string path = folder / "a.safetensors";
  const auto in_pieces = [](const FileTensor& tensor) {
    std::vector<std::byte> all;
    each_piece(tensor, [&](std::span<const std::byte> piece) {
      CHECK(piece.size() % 8 == 0);
      all.insert(all.end(), piece.begin(), piece.end());
    });
    return all;
  };
  write_safetensors(path, file);
  for (const Reading reading : {Reading::kNow, Reading::kLater}) {
    const SafetensorsFile read = read_safetensors(path, nullptr, {}, reading);
    CHECK(in_pieces(read.tensors.at("long")) == own);
    CHECK(in_pieces(read.tensors.at("none")).empty());
  }
  file.tensors["long"].bytes.back() ^= std::byte{1};
  write_safetensors(path, file);
  const SafetensorsFile damaged = read_safetensors(path, nullptr, {}, Reading::kLater);
  CHECK(fails(ExitCode::kUsage, "tensor 'long': its bytes are not those that were written",
              [&] { in_pieces(damaged.tensors.at("long")); }));
}

TEST_CASE("core/safetensors: the layout of the file, byte by byte") {
  const test::Folder folder;
  const std::string header =
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}} )";
  const std::string path = folder.write("hand.safetensors", bytes_of(header, 8) + "xy");
  const SafetensorsFile file = read_safetensors(path);
  CHECK(file.tensors.at("a").shape == Shape{1, 2});
  CHECK(file.tensors.at("a").bytes == std::vector<std::byte>(8, std::byte{'d'}));
  CHECK(file.tensors.at("b").bytes == std::vector<std::byte>{std::byte{'x'}, std::byte{'y'}});
  CHECK(file.metadata.empty());
}

TEST_CASE("core/safetensors: malformed files name file, tensor and fault") {
  const test::Folder folder;
  const auto error = [&](const std::string& content) {
    const std::string path = folder.write("bad.safetensors", content);
    const std::string text = error_of(ExitCode::kUsage, [&] { read_safetensors(path); });
    CHECK(text.starts_with("[safetensors] " + path + ": "));
    return text;
  };
  CHECK(contains(error(""), "0 bytes are too few"));
  CHECK(contains(error("1234567"), "7 bytes are too few"));
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{1} << 31, std::uint64_t{1} << 62, std::uint64_t{1} << 63,
        ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::string content(10, '\0');
    std::memcpy(content.data(), &length, 8);
    CHECK(contains(error(content),
                   "the header says to be " + std::to_string(length) + " bytes long"));
  }
  CHECK(contains(error(std::string(8, '\0')), "not a JSON object"));
  CHECK(contains(error(bytes_of("\xef\xbb\xbf{}", 0)), "not a JSON object"));
  CHECK(contains(error(bytes_of("{" + std::string(100'000, '['), 0)), "header: line 1"));
  // A header and bytes of data behind it, or the entry of a tensor w.
  for (const auto& row : test::rows_of(R"table(
not a JSON object | 0 | []
header: line 1, column | 0 | {"w":
header: line 1, column 4 | 0 | {} x
the key 'w' is given twice | 0 | {"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}
1 bytes at its end | 1 | {}
tensor 'b': its bytes overlap | 5 | {"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}}
its bytes overlap | 3 | {"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}
__metadata__ must be an object of strings | 0 | {"__metadata__":3}
__metadata__ 'a' must be a string | 0 | {"__metadata__":{"a":1}}
tensor 'w': its entry must be an object, found 3 | 0 | w:3
'dtype' is missing | 0 | w:{"shape":[0],"data_offsets":[0,0]}
'shape' is missing | 0 | w:{"dtype":"F32","data_offsets":[0,0]}
'data_offsets' is missing | 0 | w:{"dtype":"F32","shape":[0]}
unknown key 'x' | 0 | w:{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1}
dtype "F8_E4M3" is not among F64, F32 | 0 | w:{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]}
dtype 7 | 0 | w:{"dtype":7,"shape":[0],"data_offsets":[0,0]}
shape must be a list | 0 | w:{"dtype":"F32","shape":3,"data_offsets":[0,0]}
no whole number below 2^63 | 0 | w:{"dtype":"F32","shape":[@],"data_offsets":[0,0]} | @: -1 ; 1.0 ; "1" ; 9223372036854775808 ; 1e3 ; null
7 dimensions | 4 | w:{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}
too large | 0 | w:{"dtype":"U8","shape":@,"data_offsets":[0,0]} | @: [4294967296,4294967296] ; [9223372036854775807,2,0]
too large | 0 | w:{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}
two whole numbers | 4 | w:{"dtype":"F32","shape":[1],"data_offsets":@} | @: [0] ; [0,4,8] ; [-1,3] ; [0,4.0] ; {} ; null ; ["0",4]
do not lie in the 3 bytes of data | 3 | w:{"dtype":"F32","shape":[1],"data_offsets":[0,4]}
do not lie in | 4 | w:{"dtype":"F32","shape":[1],"data_offsets":[4,0]}
do not lie in | 4 | w:{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]}
takes 8 bytes, its offsets say 4 | 4 | w:{"dtype":"F32","shape":[2],"data_offsets":[0,4]}
before it 4 bytes belong to no tensor | 8 | w:{"dtype":"F32","shape":[1],"data_offsets":[4,8]}
5 bytes at its end | 9 | w:{"dtype":"F32","shape":[1],"data_offsets":[0,4]}
)table")) {
    const std::string& text = row.at(2);
    CAPTURE(text);
    const std::string header = text[0] == 'w' ? "{\"w\":" + text.substr(2) + "}" : text;
    CHECK(contains(error(bytes_of(header, std::stoul(row.at(1)))), row.at(0)));
  }
  // A name that is long or not printable must not spoil the line.
  CHECK(error(bytes_of("{\"" + std::string(100'000, 'n') + "\\n\\u001b\":3}", 0)).size() < 400);

  const auto open_error = [](const std::string& path) {
    return error_of(ExitCode::kUsage, [&] { read_safetensors(path); });
  };
  CHECK(contains(open_error(folder / "none"), "No such file"));
  CHECK(contains(open_error(folder / ""), "is a folder"));
  CHECK(contains(open_error("/dev/zero"), "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(contains(open_error(folder / "pipe"), "not a regular file"));
}

TEST_CASE(
    "core/safetensors: every truncation and every changed byte of the header is read or refused") {
  const test::Folder folder;
  write_safetensors(folder / "good", sample());
  const std::string good = folder.read("good");
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  int read = 0, refused = 0;
  // Thousands of files: in memory, for the disk's sake.
  const int memory = ::memfd_create("changed", 0);
  REQUIRE(memory >= 0);
  const std::string path = fmt::format("/proc/self/fd/{}", memory);
  const auto attempt = [&](const std::string& content) {
    REQUIRE(::ftruncate(memory, static_cast<off_t>(content.size())) == 0);
    REQUIRE(::pwrite(memory, content.data(), content.size(), 0) ==
            static_cast<ssize_t>(content.size()));
    try {
      const SafetensorsFile file = read_safetensors(path);
      std::size_t total = 0;
      for (const auto& [name, tensor] : file.tensors) {
        total += tensor.bytes.size();
        CHECK(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype) ==
              tensor.bytes.size());
      }
      CHECK(total <= content.size());
      ++read;
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      ++refused;
    }
  };
  for (std::size_t length = 0; length < good.size(); ++length) attempt(good.substr(0, length));
  CHECK(read == 0);
  for (std::size_t i = 0; i < 8 + header; ++i) {
    for (const unsigned mask : {0x01u, 0x04u, 0x20u, 0x80u, 0xffu}) {
      std::string changed = good;
      changed[i] = static_cast<char>(static_cast<unsigned char>(changed[i]) ^ mask);
      attempt(changed);
    }
  }
  CHECK(read > 0);  // a changed letter of a name is as good as the old one
  CHECK(refused > 4 * read);
  ::close(memory);
}

TEST_CASE("core/safetensors: writing refuses what it could not read") {
  const test::Folder folder;
  SafetensorsFile file;
  file.tensors["a"] = tensor_of(DType::kFloat32, Shape{2});
  file.tensors["a"].bytes.pop_back();
  CHECK(fails(ExitCode::kInternal, "'a': shape 2 of fp32 does not take 7 bytes",
              [&] { write_safetensors(folder / "x", file); }));
  file.tensors.clear();
  file.tensors["__metadata__"] = tensor_of(DType::kFloat32, Shape{2});
  CHECK(fails(ExitCode::kInternal, "__metadata__", [&] { write_safetensors(folder / "x", file); }));
  file.tensors.clear();
  file.tensors["\xff"] = tensor_of(DType::kFloat32, Shape{2});
  CHECK(fails(ExitCode::kInternal, "UTF-8", [&] { write_safetensors(folder / "x", file); }));
  CHECK(folder.files() == 0);
}

TEST_CASE("core/safetensors: a number that is not finite is written in no place and no dtype") {
  const test::Folder folder;
  // the largest number, infinity, -infinity, a quiet NaN, another
  const auto patterns = [](DType dtype) -> std::vector<std::uint64_t> {
    switch (dtype) {
      case DType::kFloat64:
        return {0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000,
                0xfff0000000000001};
      case DType::kFloat32: return {0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xff800001};
      case DType::kBFloat16: return {0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0xff81};
      default: return {0x7bff, 0x7c00, 0xfc00, 0x7e00, 0xfc01};
    }
  };
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::vector<std::uint64_t> bits = patterns(dtype);
    for (const std::size_t place : {std::size_t{0}, std::size_t{1}, std::size_t{77}}) {
      for (std::size_t k = 0; k < bits.size(); ++k) {
        SafetensorsFile file;
        file.tensors["whole"] = {DType::kInt64, Shape{1},
                                 std::vector<std::byte>(8, std::byte{0xff})};
        FileTensor& tensor = file.tensors["net.weight"] = {
            dtype, Shape{78}, std::vector<std::byte>(78 * size_of(dtype))};
        std::memcpy(tensor.bytes.data() + place * size_of(dtype), &bits[k], size_of(dtype));
        if (k == 0) {
          CHECK_NOTHROW(write_safetensors(folder / "finite", file));
        } else {
          CHECK(fails(ExitCode::kDiverged, "tensor 'net.weight' holds numbers",
                      [&] { write_safetensors(folder / "x", file); }));
        }
      }
    }
  }
  CHECK(folder.files() == 1);
}

TEST_CASE(
    "core/safetensors: a write that fails names file, reason and remedy, and leaves the old file") {
  const test::Folder folder;
  const auto error = [](const std::string& path) {
    return error_of(ExitCode::kOutput, [&] { write_safetensors(path, sample()); });
  };
  CHECK(contains(error("/dev/full"),
                 "/dev/full: could not be written: No space left on device; free some space"));
  CHECK(contains(error(folder / "none/a"),
                 "none/a: could not be written: No such file or directory; its folder must exist"));
  CHECK(contains(error(folder / ""), "Is a directory"));
  CHECK(contains(error(""), "could not be written"));
  CHECK(contains(error(folder / std::string(300, 'n')), "choose a shorter name"));
  CHECK(folder.files() == 0);

  const std::string path = folder.write("model", "old");
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 100;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string text = error_of(ExitCode::kOutput, [&] { write_safetensors(path, sample()); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  CHECK(contains(text, "File too large; raise the limit of file sizes"));
  CHECK(folder.read("model") == "old");
  CHECK(folder.files() == 1);

  write_file_atomically(path, "new", 3);
  CHECK(folder.read("model") == "new");
  CHECK_NOTHROW(write_file_atomically("/dev/null", "x", 1));
  struct stat status {};
  CHECK((::stat("/dev/null", &status) == 0 && S_ISCHR(status.st_mode)));
  CHECK(folder.files() == 1);
}

TEST_CASE("core/safetensors: layouts") {
  // O=2, kH=2, kW=3, I=4 in memory.
  const Shape memory{2, 2, 3, 4};
  CHECK(file_shape(memory, TensorLayout::kConvWeight) == Shape{2, 4, 2, 3});
  CHECK(file_shape(memory, TensorLayout::kPlain) == memory);
  const auto check = [&]<class T>(T) {
    std::vector<T> numbers(48), file(48), back(48);
    for (std::size_t i = 0; i < 48; ++i) numbers[i] = static_cast<T>(i);
    to_file_layout(reinterpret_cast<const std::byte*>(numbers.data()), memory,
                   TensorLayout::kConvWeight, sizeof(T), reinterpret_cast<std::byte*>(file.data()));
    for (std::size_t o = 0; o < 2; ++o) {
      for (std::size_t h = 0; h < 2; ++h) {
        for (std::size_t w = 0; w < 3; ++w) {
          for (std::size_t i = 0; i < 4; ++i)
            CHECK(file[((o * 4 + i) * 2 + h) * 3 + w] == numbers[((o * 2 + h) * 3 + w) * 4 + i]);
        }
      }
    }
    to_memory_layout(reinterpret_cast<const std::byte*>(file.data()), memory,
                     TensorLayout::kConvWeight, sizeof(T),
                     reinterpret_cast<std::byte*>(back.data()));
    CHECK(back == numbers);
    to_file_layout(reinterpret_cast<const std::byte*>(numbers.data()), memory, TensorLayout::kPlain,
                   sizeof(T), reinterpret_cast<std::byte*>(file.data()));
    CHECK(file == numbers);
    to_memory_layout(reinterpret_cast<const std::byte*>(numbers.data()), memory,
                     TensorLayout::kPlain, sizeof(T), reinterpret_cast<std::byte*>(back.data()));
    CHECK(back == numbers);
  };
  check(std::uint8_t{});
  check(std::uint16_t{});
  check(float{});
  check(double{});
  CHECK(fails(ExitCode::kInternal, "4 dimensions", [] {
    file_shape(Shape{2, 3}, TensorLayout::kConvWeight);
  }));
}
