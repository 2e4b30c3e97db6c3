#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Names of the class folders in a folder, sorted by byte; empty if the folder does not exist.
/// Error(kUsage) if it cannot be read, or contains a dangling link. `others` counts pictures that
/// are not in a class folder.
std::vector<std::string> class_folders(const std::string& folder,
                                       std::map<std::string, std::int64_t>* others = nullptr);

/// Error(kUsage) if folder/train and folder/val have different classes (`val` is empty if there is
/// none). Warns if two names look the same, or there is only one class. `who` prefixes the
/// messages.
void check_classes(const std::string& who, const std::string& folder,
                   const std::vector<std::string>& train, const std::vector<std::string>& val);

/// The picture files (.jpg, .jpeg, .png in any case) below each class folder of a folder, sorted by
/// class and path. Listed from scratch in each process, so never outdated. Only directories are
/// read, no files, which takes a second for a million files; memory is the names and 8 bytes each.
/// An entry with a picture's name that is not a folder is listed, even a dangling link; errors are
/// found when it is read.
class PictureIndex {
 public:
  /// Errors are Error(kUsage) with the folder.
  explicit PictureIndex(const std::string& folder);

  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()) - 1; }
  std::int64_t label(std::int64_t index) const;
  std::string path(std::int64_t index) const { return folder_ + "/" + std::string(name(index)); }
  /// Path below the folder.
  std::string_view name(std::int64_t index) const;
  std::int64_t bytes(std::int64_t index) const;  ///< size of the file, looked up now; 0: not a file
  /// The number of a class's first file; first(classes) is size().
  std::int64_t first(std::int64_t label) const { return first_[static_cast<std::size_t>(label)]; }
  /// Number of files without a picture's name, and of pictures outside class folders, by ending:
  /// {".webp", 12}. Hidden files are not counted.
  const std::map<std::string, std::int64_t>& others() const { return others_; }
  /// All paths below the folder, concatenated.
  const std::string& names() const { return names_; }

 private:
  std::string folder_;
  std::map<std::string, std::int64_t> others_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> first_{0};
  std::string names_;
  std::vector<std::size_t> places_{0};  ///< offset of each name in names_, and the end of the last
};

}  // namespace starling
