#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/data/dataset.h"
#include "core/safetensors.h"

// What a data set holds, in short. `data.path` may name another place on another host and at
// another time; what lies there must be the same, lest ranks train on different samples, or a
// resumed run on those that it was tested on.

namespace starling {

/// The numbers of samples, the classes and the checksums of an open data set: a line of JSON.
std::string contents_of(const DatasetInfo& data);

/// `data.path` of a resolved config: where the data are. Empty where the data set has no such key.
std::string data_path_of(const nlohmann::json& resolved);

/// The first thing in which two of these differ, such as "41 training samples" and "40".
struct ContentsDifference {
  std::string mine, other;
};
/// The first difference of two; none also where only one of them says it: older versions say less.
/// Error(kUsage) that names `source` where `other` is none of these.
std::optional<ContentsDifference> difference_of(const std::string& mine, const std::string& other,
                                                const std::string& source);

/// This rank's part of a checkpoint.
void save_contents(const DatasetInfo& data, SafetensorsFile& file);
/// Whether the checkpoint says what its data held; those of older versions do not.
bool has_contents(const SafetensorsFile& file);
/// Error(kUsage) that says in what `data`, found at `path`, are not those that the checkpoint was
/// made with, if it says so.
void check_same_contents(const SafetensorsFile& file, const std::string& source,
                         const DatasetInfo& data, const std::string& path);

}  // namespace starling
