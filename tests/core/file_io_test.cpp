#include "core/file_io.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/checksum.h"
#include "core/error.h"
#include "core/operations/accesses.h"
#include "core/safetensors.h"
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

TEST_CASE(
    "core/file: past the cache a file has the same bytes, on disks and in memory, whatever its "
    "pieces are") {
  const Folder disk;
  std::string shared = "/dev/shm/starling-test-XXXXXX";
  const bool has_shared = ::mkdtemp(shared.data()) != nullptr;
  for (const std::string& folder : {disk.path(), has_shared ? shared : disk.path()}) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097},
          (std::size_t{1} << 20) - 1, std::size_t{1} << 20, (std::size_t{1} << 20) + 1,
          std::size_t{3'000'001}}) {
      for (const std::size_t piece :
           {std::size_t{1000}, std::size_t{131'072}, std::size_t{5'000'000}}) {
        CAPTURE(folder);
        CAPTURE(size);
        CAPTURE(piece);
        const std::string bytes = bytes_of(size), path = folder + "/file";
        AtomicFile file(path, AtomicFile::Cache::kPast);
        for (std::size_t at = 0; at < size; at += piece)
          file.write(bytes.data() + at, std::min(piece, size - at));
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

TEST_CASE(
    "core/file: past the cache, what is not committed leaves nothing, and a device is written all "
    "the same") {
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
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{63}, std::size_t{256}, std::size_t{100'003}, bytes.size()}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{240},
                                   std::size_t{241}, std::size_t{70'000}, bytes.size()}) {
      CAPTURE(piece);
      CAPTURE(size);
      for (std::size_t at = 0; at < size; at += piece)
        sum.add(bytes.data() + at, std::min(piece, size - at));
      CHECK(sum.take() == checksum(bytes.data(), size));
    }
  }
}

TEST_CASE("core/file: what is no regular file is not opened, and never waited for") {
  const Folder folder;
  const auto fault = [&](const std::string& path) { return RegularFile(path).fault(); };
  CHECK(fault(folder / "none") == "No such file or directory");
  CHECK(fault(folder.path()) == "it is a folder, not a regular file");
  CHECK(fault("/dev/zero") == "it is a device, not a regular file");
  CHECK(fault(std::string("a\0b", 3)) == "the name holds a zero byte");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(fault(folder / "pipe") == "it is a pipe, not a regular file");  // no one writes to it
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string socket_path = folder / "socket";
  REQUIRE(socket_path.size() < sizeof address.sun_path);
  std::copy(socket_path.begin(), socket_path.end(), address.sun_path);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(fault(socket_path) == "it is a socket, not a regular file");
  ::close(socket);

  folder.write("file", "12345");
  std::filesystem::create_symlink("file", folder / "link");
  for (const char* name : {"file", "link"}) {
    RegularFile file(folder / name);
    CHECK(file.fault().empty());
    CHECK(file.bytes() == 5);
    char first = 0;
    CHECK(::read(file.descriptor(), &first, 1) == 1);
    CHECK(first == '1');
  }
}

TEST_CASE(
    "core/file: links are followed, nobody's file is taken as a temporary one, permissions stay, "
    "descriptors are written directly") {
  namespace fs = std::filesystem;
  const Folder folder;
  const auto write = [&](const std::string& name) { write_file_atomically(name, "new", 3); };
  const auto in = [&](const std::string& name) { return folder.path() + "/" + name; };
  fs::create_directory(in("far"));
  folder.write("far/file", "old");
  folder.write("link.tmp", "somebody's");
  fs::permissions(in("far/file"), fs::perms(0640));
  fs::create_symlink("far/file", in("link"));
  fs::create_symlink(in("link"), in("second"));
  fs::create_symlink("far/none", in("to_nothing"));
  fs::create_symlink("circle", in("circle"));
  write(in("second"));
  write(in("to_nothing"));
  CHECK(fs::is_symlink(in("second")));
  CHECK(fs::is_symlink(in("link")));
  CHECK(folder.read("far/file") == "new");
  CHECK(fs::status(in("far/file")).permissions() == fs::perms(0640));
  CHECK(fs::is_symlink(in("to_nothing")));
  CHECK(folder.read("far/none") == "new");
  CHECK(folder.read("link.tmp") == "somebody's");
  CHECK(fails(ExitCode::kOutput, "symbolic links", [&] { write(in("circle")); }));
  CHECK(fs::is_symlink(in("circle")));

  const int descriptor = ::open(in("stream").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  REQUIRE(descriptor >= 0);
  REQUIRE(::write(descriptor, "begin ", 6) == 6);
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), in("standard"));
  write(in("standard"));
  write("/dev/fd/" + std::to_string(descriptor));
  CHECK(folder.read("stream") == "begin newnew");
  CHECK(fs::is_symlink(in("standard")));
  ::close(descriptor);
  CHECK(fails(ExitCode::kOutput, "standard: could not be written", [&] { write(in("standard")); }));

  std::string target;
  CHECK((is_temporary_name("model.safetensors.0123abcd.tmp", &target) &&
         target == "model.safetensors"));
  for (const char* other : {"model.tmp", "a.0123abc.tmp", "a.0123ABCD.tmp", "a-0123abcd.tmp",
                            ".0123abcd.tmp", "a.0123abcd.tmp2"})
    CHECK_MESSAGE(!is_temporary_name(other), other);
  {
    AtomicFile file(in("unfinished"));
    file.write("x", 1);
    int temporary = 0;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      temporary += is_temporary_name(entry.path().filename().string()) ? 1 : 0;
    CHECK(temporary == 1);
  }
  CHECK_FALSE(fs::exists(in("unfinished")));
}

TEST_CASE("core/open_output: what is there of another kind stays, whatever it is") {
  namespace fs = std::filesystem;
  const Folder folder;
  const auto in = [&](const char* name) { return folder.path() + "/" + name; };
  const OutputKind kind{{"step,lr\n", "older step\n"}, "table of rates"};
  const auto write = [&](const std::string& path) {
    const auto file = open_output("--rates", path, kind);
    file->write("step,lr\nnew", 11);
    file->commit();
  };
  for (const char* own : {"", "step,lr\n", "step,lr\n1,2\n", "older step\n3"}) {
    folder.write("own", own);
    write(in("own"));
    CHECK(folder.read("own") == "step,lr\nnew");
  }
  write(in("new"));
  CHECK(folder.read("new") == "step,lr\nnew");
  // What went to a descriptor of the process's own before stays there
  folder.write("log", "said before\n");
  const int log = ::open(in("log").c_str(), O_WRONLY | O_APPEND);
  write("/dev/fd/" + std::to_string(log));
  ::close(log);
  CHECK(folder.read("log") == "said before\nstep,lr\nnew");
  // Shorter than what is looked for, alike at first, and with what is looked for further on
  for (const std::string other : {"s", "step,lr", "step,loss\n1", "\nstep,lr\n", "{}"}) {
    folder.write("other", other);
    fs::create_symlink("other", in("link"));
    for (const char* name : {"other", "link"}) {
      const std::string said = error_of(ExitCode::kUsage, [&] { write(in(name)); });
      CHECK(contains(said, std::string("--rates ") + in(name)));
      CHECK(contains(said, "holds no table of rates; name another one"));
    }
    CHECK(folder.read("other") == other);
    fs::remove(in("link"));
  }
  CHECK(fails(ExitCode::kOutput, "no/where", [&] { write(in("no/where")); }));
  CHECK(fails(ExitCode::kOutput, "folder", [&] { write(folder.path()); }));
  write("/dev/null");
}
