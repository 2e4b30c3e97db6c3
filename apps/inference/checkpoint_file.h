#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace starling {

/// A complete checkpoint, as whoever reads it sees it: the folder `RUN/checkpoints/step-N` or
/// `RUN/checkpoints/best`, with `rank-R.safetensors` of each rank that made it, and `DONE`, a JSON
/// object with its own checksum, the step and, per file, its digest.
///
/// What is equal on all ranks is written once. Where a rank's file has the metadata entry
/// kSharedTensors, a JSON object {TENSOR: RANK}, it lacks those tensors: they are in that rank's
/// file, a lower one's, which has them itself.
///
/// A missing or damaged checkpoint is Error(kUsage) that names file and tensor. Those of older
/// versions have the line "step N" as their DONE, and are read unchecked.
class CheckpointFile {
 public:
  /// Reads DONE. `step`: the one that it must say.
  explicit CheckpointFile(std::string folder, std::optional<std::int64_t> step = std::nullopt);

  std::int64_t step() const { return step_; }
  int ranks() const { return ranks_; }
  std::string rank_file(int rank) const;
  /// A rank's whole state: what its own file has, and what it shares, with its own metadata.
  /// Tensors for whose names `left_out` says true are not read.
  SafetensorsFile read(int rank,
                       const std::function<bool(const std::string&)>& left_out = {}) const;

 private:
  SafetensorsFile read_file(int rank,
                            const std::function<bool(const std::string&)>& left_out) const;

  std::string folder_;
  std::int64_t step_ = 0;
  int ranks_ = 0;
  bool checked_ = true;
  std::map<std::string, FileDigest> files_;
};

std::string rank_file_name(int rank);

/// `RUN/checkpoints/step-N`.
std::string checkpoint_path(const std::string& run, std::int64_t step);
/// The run whose checkpoint a folder is; empty: it is none.
std::string run_of_checkpoint(const std::string& path);
/// What has the name of a run's checkpoint.
struct CheckpointEntry {
  std::int64_t step = 0;
  bool complete = false;  ///< its DONE is there, whatever that says
};
/// Those of a folder `checkpoints`, in ascending order of steps. Other names are none of ours and
/// are left alone.
std::vector<CheckpointEntry> checkpoints_in(const std::string& checkpoints);

inline constexpr const char* kSharedTensors = "shared_tensors";
/// What a rank's file says of the tensors that it lacks: in which rank's each is. `source` names
/// the file in errors.
std::map<std::string, int> shared_tensors(const SafetensorsFile& file, const std::string& source);

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
