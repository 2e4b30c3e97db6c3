#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

/// Names of the class folders in a folder, sorted by byte. Error(kUsage) where the folder cannot be
/// read, or a link in it leads to nothing; empty where it is not there.
/// `others` counts pictures that lie beside them.
std::vector<std::string> class_folders(const std::string& folder,
                                       std::map<std::string, std::int64_t>* others = nullptr);

/// Told by `who`: Error(kUsage) where folder/train and folder/val have other classes, `val` being
/// empty where there is none; a warning where two of them look the same, or there is but one.
void check_classes(const std::string& who, const std::string& folder,
                   const std::vector<std::string>& train, const std::vector<std::string>& val);

/// The picture files (.jpg, .jpeg, .png in any case) below each class folder of a folder, sorted by
/// class and path, as they are there now: nothing is kept from one process to the next, so nothing
/// can be of before. Folders are listed, files not looked at, which takes a second for a million
/// files; their names are kept, and 8 bytes for each. Whatever has such a name and is no folder is
/// listed: a link to nothing, say, which is so named when it is read.
class PictureIndex {
 public:
  /// Errors are Error(kUsage) that name the folder.
  explicit PictureIndex(const std::string& folder);

  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()) - 1; }
  std::int64_t label(std::int64_t index) const;
  std::string path(std::int64_t index) const { return folder_ + "/" + std::string(name(index)); }
  /// Below the folder.
  std::string_view name(std::int64_t index) const;
  std::int64_t bytes(std::int64_t index) const;  ///< of the file, looked up now; 0: it is none
  /// The first file of a class; first(classes) is size().
  std::int64_t first(std::int64_t label) const { return first_[static_cast<std::size_t>(label)]; }
  /// Files that are no pictures by their names, and pictures in no class folder, by ending:
  /// {".webp", 12}. Hidden ones do not count.
  const std::map<std::string, std::int64_t>& others() const { return others_; }
  /// All paths below the folder, one right after another.
  const std::string& names() const { return names_; }

 private:
  std::string folder_;
  std::map<std::string, std::int64_t> others_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> first_{0};
  std::string names_;
  std::vector<std::size_t> places_{0};  ///< where names begin, and where the last one ends
};

}  // namespace starling
