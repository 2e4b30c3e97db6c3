#include "core/file_io.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/checksum.h"
#include "core/error.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

using namespace starling;
using namespace starling::test;

namespace {

/// Bytes that do not repeat with the pages.
std::string bytes_of(std::size_t count) {
  std::string bytes(count, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

}  // namespace

TEST_CASE("core/file: past the cache a file has the same bytes, on disks and in memory, whatever its pieces are") {
  const Folder disk;
  std::string shared = "/dev/shm/starling-test-XXXXXX";
  const bool has_shared = ::mkdtemp(shared.data()) != nullptr;
  for (const std::string& folder : {disk.path(), has_shared ? shared : disk.path()}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097}, (std::size_t{1} << 20) - 1,
                                   std::size_t{1} << 20, (std::size_t{1} << 20) + 1, std::size_t{3'000'001}}) {
      for (const std::size_t piece : {std::size_t{1000}, std::size_t{131'072}, std::size_t{5'000'000}}) {
        CAPTURE(folder);
        CAPTURE(size);
        CAPTURE(piece);
        const std::string bytes = bytes_of(size), path = folder + "/file";
        AtomicFile file(path, AtomicFile::Cache::kPast);
        for (std::size_t at = 0; at < size; at += piece) file.write(bytes.data() + at, std::min(piece, size - at));
        CHECK_FALSE(std::filesystem::exists(path));
        file.commit();
        std::ifstream stream(path, std::ios::binary);
        CHECK((std::string(std::istreambuf_iterator<char>(stream), {}) == bytes));
        std::filesystem::remove(path);
      }
    }
  }
  if (has_shared) std::filesystem::remove_all(shared);
}

TEST_CASE("core/file: past the cache, what is not committed leaves nothing, and a device is written all the same") {
  const Folder folder;
  const std::string bytes = bytes_of(2'000'000), path = folder / "file";
  {
    AtomicFile file(path, AtomicFile::Cache::kPast);
    file.write(bytes.data(), bytes.size());
  }
  CHECK(folder.files() == 0);
  AtomicFile null("/dev/null", AtomicFile::Cache::kPast);
  null.write(bytes.data(), bytes.size());
  null.commit();
  const std::string text = error_of(ExitCode::kOutput, [&] {
    AtomicFile full("/dev/full", AtomicFile::Cache::kPast);
    full.write(bytes.data(), bytes.size());
    full.commit();
  });
  CHECK(text.find("/dev/full") != std::string::npos);
}

TEST_CASE("core/checksum: of pieces it is that of the whole") {
  const std::string bytes = bytes_of(300'000);
  ChecksumOfPieces sum;
  for (const std::size_t piece : {std::size_t{1}, std::size_t{63}, std::size_t{256}, std::size_t{100'003}, bytes.size()}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{240}, std::size_t{241}, std::size_t{70'000}, bytes.size()}) {
      CAPTURE(piece);
      CAPTURE(size);
      for (std::size_t at = 0; at < size; at += piece) sum.add(bytes.data() + at, std::min(piece, size - at));
      CHECK(sum.take() == checksum(bytes.data(), size));
    }
  }
}
