#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/data/dataset.h"
#include "core/safetensors.h"

// A summary of a data set's contents. `data.path` may differ between hosts, and for a resumed run,
// but the contents must be the same, lest test samples are trained on.

namespace starling {

/// The numbers of samples, the classes and the checksums of an open data set: a line of JSON.
std::string contents_of(const DatasetInfo& data);

/// `data.path` of a resolved config; empty if the data set has no such key.
std::string data_path_of(const nlohmann::json& resolved);

/// The first difference between two summaries, such as "41 training samples" and "40".
struct ContentsDifference {
  std::string mine, other;
};
/// Ignores what only one summary has. Error(kUsage) with `source` if `other` is none.
std::optional<ContentsDifference> difference_of(const std::string& mine, const std::string& other,
                                                const std::string& source);

/// This rank's part of a checkpoint.
void save_contents(const DatasetInfo& data, SafetensorsFile& file);
/// Whether the checkpoint says what its data held; those of older versions do not.
bool has_contents(const SafetensorsFile& file);
/// Error(kUsage) where `data`, found at `path`, are not those that the checkpoint was made with.
void check_same_contents(const SafetensorsFile& file, const std::string& source,
                         const DatasetInfo& data, const std::string& path);

}  // namespace starling
