#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/trainer/data/files.h"

namespace starling {

/// Names of the class folders in a folder, sorted by byte. Error(kUsage) where the folder cannot be read, or a link in it leads to nothing;
/// empty where it is not there.
std::vector<std::string> class_folders(const std::string& folder);

/// Error(kUsage), told by `who`, where folder/train and folder/val have other classes.
void check_same_classes(const std::string& who, const std::string& folder, const std::vector<std::string>& train,
                        const std::vector<std::string>& val);

/// The picture files (.jpg, .jpeg, .png in any case) below each class folder of a folder, sorted by class and path: found once and kept in
/// an index file, which all ranks of a host map. Later it is checked against its checksum and the folders' times of change alone, so that a
/// million files open in a moment. 12 bytes a file beside its name. Whatever has such a name and is no folder is listed: a link to
/// nothing, say, which is so named when it is read.
class PictureIndex {
 public:
  /// Reads the index, or looks through the folders and writes it: `.starling-index` in the folder, or in the user's cache folder where that
  /// cannot be written. Processes that start together wait for the one that writes, an hour at most. Errors are Error(kUsage) that name the
  /// folder.
  explicit PictureIndex(const std::string& folder);

  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t size() const { return files_; }
  std::int64_t label(std::int64_t index) const;
  std::string path(std::int64_t index) const;
  std::int64_t bytes(std::int64_t index) const;  ///< of the file, when it was indexed
  /// The first file of a class; first(classes) is size().
  std::int64_t first(std::int64_t label) const { return first_[static_cast<std::size_t>(label)]; }
  const std::string& file() const { return map_->path(); }  ///< of the index
  /// All paths below the folder, one right after another.
  std::string_view names() const { return {names_, static_cast<std::size_t>(places_[files_])}; }

 private:
  bool open_file(const std::string& file);
  std::string folder_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> first_;
  std::int64_t files_ = 0;
  std::unique_ptr<MappedFile> map_;
  const std::uint64_t* places_ = nullptr;  ///< of the names, files_ + 1 of them
  const std::uint32_t* sizes_ = nullptr;
  const char* names_ = nullptr;
};

}  // namespace starling
