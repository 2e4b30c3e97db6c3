#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "core/error.h"
#include "tests/support/folder.h"

// What the fuzz targets share. A target is a file with LLVMFuzzerTestOneInput: it gets any bytes,
// and the program's own reader must take them or refuse them by an Error with the exit status for
// bad input. Anything else (another exception, a crash, a hang, endless memory) is a fault. With
// clang each is linked to libFuzzer; otherwise to driver.cpp, which mutates the corpus without a
// compiler's help.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace starling::fuzz {

/// A folder of this process in memory, which goes with it.
inline const std::string& folder() {
  static const test::Folder made(std::filesystem::is_directory("/dev/shm")
                                     ? "/dev/shm"
                                     : std::filesystem::temp_directory_path());
  static const std::string path = made.path();
  return path;
}

/// Writes folder()/NAME; its path.
inline std::string file(const std::string& name, std::string_view content) {
  const std::string path = folder() + "/" + name;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) std::abort();
  return path;
}

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs a reader; a refusal must be one of bad input, in one line that is not endless.
template <class Read>
int reads_or_refuses(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.code() != ExitCode::kUsage || message.empty() || message.size() > 4096 ||
        message.find('\n') != std::string::npos) {
      std::fprintf(stderr, "a refusal with status %d: %s\n", static_cast<int>(error.code()),
                   message.c_str());
      std::abort();
    }
  }
  return 0;
}

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what.c_str());
  std::abort();
}

/// What a trial is drawn from.
struct Draw {
  std::mt19937_64 random;
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
};

}  // namespace starling::fuzz
