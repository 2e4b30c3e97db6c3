#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "core/config.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

// Folders of texts and of token files, and data sets of them.
namespace starling::test {

inline constexpr auto kTraining = Dataset::Split::kTrain, kTests = Dataset::Split::kTest;

struct TextFiles {
  Folder folder;
  std::string at(const std::string& name) const { return folder.path() + "/" + name; }
  std::string text(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << content;
    return at(name);
  }
  std::string gzip(const std::string& name, const std::string& content) const {
    text(name, "");
    const gzFile file = ::gzopen(at(name).c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
    return at(name);
  }
  /// `header`: llm.c's first numbers, of 256.
  template <class T>
  std::string tokens(const std::string& name, const std::vector<T>& tokens,
                     std::vector<std::uint32_t> header = {}) const {
    if (!header.empty()) header.resize(256);
    return text(name, std::string(reinterpret_cast<const char*>(header.data()), 4 * header.size()) +
                          std::string(reinterpret_cast<const char*>(tokens.data()),
                                      sizeof(T) * tokens.size()));
  }
};

inline std::unique_ptr<Dataset> made(const std::string& type, const nlohmann::json& keys) {
  register_builtin_datasets();
  ConfigSection section(keys, "test.json");
  auto dataset = datasets().make(type, "data.type", section, 1);
  section.finish();
  return dataset;
}
inline std::unique_ptr<Dataset> opened(const std::string& type, const nlohmann::json& keys) {
  auto dataset = made(type, keys);
  dataset->open();
  return dataset;
}
inline std::string open_error(const std::string& type, const nlohmann::json& keys) {
  return error_of(ExitCode::kUsage, [&] { opened(type, keys); });
}

}  // namespace starling::test
