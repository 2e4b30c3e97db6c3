#include "apps/inference/done_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/checksum.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::string_view kOpening = "{\n", kBefore = " \"checksum\": \"", kAfter = "\",\n";
constexpr std::size_t kDigits = 16;
constexpr std::array<std::string_view, 4> kKeys = {"files", "metric", "step", "value"};

/// Takes the checksum's line out of the text; what it says, or nothing where there is none.
std::string take_checksum(std::string& text) {
  if (!text.starts_with(std::string(kOpening).append(kBefore))) return "";
  const std::size_t digits = kOpening.size() + kBefore.size(), after = digits + kDigits;
  if (text.size() < after || text.compare(after, kAfter.size(), kAfter) != 0) return "";
  std::string found = text.substr(digits, kDigits);
  text.erase(kOpening.size(), after + kAfter.size() - kOpening.size());
  return found;
}

}  // namespace

std::string done_text(const nlohmann::json& object) {
  std::string text = object.dump(1) + "\n";
  text.insert(kOpening.size(), fmt::format("{}{}{}", kBefore, checksum(text), kAfter));
  return text;
}

nlohmann::json parse_done(const std::string& path, const std::string& text) {
  const auto refuse = [&](std::string_view fault) {
    fail(ExitCode::kUsage, "checkpoint", {.file = path}, "{}; the file is damaged", fault);
  };
  std::string rest = text;
  const std::string written = take_checksum(rest);
  if (!written.empty()) {
    const std::string found = checksum(rest);
    if (found != written) {
      refuse(fmt::format("its bytes are not those that were written (checksum {}, was {})", found,
                         shown(written, kDigits)));
    }
  }
  // The parser takes a zero byte for the text's end.
  if (rest.find('\0') != std::string::npos) refuse("it has bytes that no text has");
  nlohmann::json json = nlohmann::json::parse(rest, nullptr, false);
  if (!json.is_object()) refuse("it is no JSON object");
  if (!written.empty()) return json;
  // A damaged name of the checksum must not make it one of an older version.
  for (const auto& entry : json.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), entry.key()) == kKeys.end()) {
      refuse(fmt::format("'{}' is no key of it", shown(entry.key(), 60)));
    }
  }
  return json;
}

std::optional<std::string> done_in(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(folder + "/DONE", error)) return std::nullopt;
  std::ifstream in(folder + "/DONE", std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

nlohmann::json json_of(const FileDigest& digest) {
  return {{"bytes", digest.bytes}, {"header", digest.header}, {"tensors", digest.tensors}};
}

std::optional<FileDigest> digest_in(const nlohmann::json& json) {
  try {
    return FileDigest{json.at("bytes").get<std::uint64_t>(), json.at("header").get<std::string>(),
                      json.at("tensors").get<std::map<std::string, std::string>>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace starling
