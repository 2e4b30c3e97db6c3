#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/safetensors.h"

namespace starling {

/// The file DONE of a checkpoint, as text: a JSON object whose first line is the checksum
/// (core/checksum.h) of the text without that line. So no byte of it can change, go or come
/// unnoticed.
std::string done_text(const nlohmann::json& object);

/// Reads one back, without its checksum. What is no whole DONE is Error(kUsage) that names the file
/// and the fault. One without a checksum, as older versions wrote them, is taken as it is; then it
/// has no other keys than those of a checkpoint.
nlohmann::json parse_done(const std::string& path, const std::string& text);

/// A folder's DONE as text; none where there is no such file, or something else has its name.
std::optional<std::string> done_in(const std::string& folder);

/// A file's digest as DONE has it, and back; none where it is no digest.
nlohmann::json json_of(const FileDigest& digest);
std::optional<FileDigest> digest_in(const nlohmann::json& json);

}  // namespace starling
