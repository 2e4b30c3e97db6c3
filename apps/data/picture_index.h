#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/pictures/picture.h"

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

/// The labelled pictures of one split, by number: sorted by class, in a fixed order. Thread-safe.
class PictureSource {
 public:
  virtual ~PictureSource() = default;
  /// Class names, sorted.
  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t size() const { return first_.back(); }
  /// The number of a class's first picture; first(classes) is size().
  std::int64_t first(std::int64_t label) const { return first_[static_cast<std::size_t>(label)]; }
  std::int64_t label(std::int64_t index) const;
  virtual std::int64_t bytes(std::int64_t index) const = 0;  ///< of the picture's encoded data
  /// The path of the picture's original file below train/ or val/.
  virtual std::string name(std::int64_t index) const = 0;
  /// Files that are left out: their number by ending, {".webp", 12}.
  virtual std::map<std::string, std::int64_t> other_files() const { return {}; }
  /// Checksums that identify these pictures, see DatasetInfo. `split` is "train" or "val". Must be
  /// fast for a million pictures.
  virtual std::map<std::string, std::uint32_t> checksums(const std::string& split) const = 0;
  /// Decodes the part that `choose` selects to side × side × 3 bytes at `out`, or with `later`
  /// stores the part there, not resized. Error(kUsage) with the picture and the reason.
  virtual void decode(std::int64_t index, PictureDecoder& decoder, const PartChoice& choose,
                      std::int64_t side, std::uint8_t* out, CutTarget* later) const = 0;
  /// Announces pictures that will be decoded soon, in any order.
  virtual void will_decode(std::span<const std::int64_t>) const {}

 protected:
  PictureSource() = default;
  PictureSource(std::vector<std::string> classes, std::vector<std::int64_t> first)
      : classes_(std::move(classes)), first_(std::move(first)) {}
  std::vector<std::string> classes_;
  std::vector<std::int64_t> first_{0};  ///< of each class, and the number of pictures
};

/// The picture files (.jpg, .jpeg, .png in any case) below each class folder of a folder, sorted by
/// class and path. Listed from scratch in each process, so never outdated. Only directories are
/// read, no files, which takes a second for a million files; memory is the names and 8 bytes each.
/// An entry with a picture's name that is not a folder is listed, even a dangling link; errors are
/// found when it is read. Other files, and pictures outside class folders, are counted, but for
/// hidden ones.
class PictureIndex final : public PictureSource {
 public:
  /// Errors are Error(kUsage) with the folder.
  explicit PictureIndex(const std::string& folder);

  std::string path(std::int64_t index) const { return folder_ + "/" + name(index); }
  std::string name(std::int64_t index) const override;
  /// Size of the file, looked up now; 0: not a file.
  std::int64_t bytes(std::int64_t index) const override;
  std::map<std::string, std::int64_t> other_files() const override { return others_; }
  std::map<std::string, std::uint32_t> checksums(const std::string& split) const override;
  void decode(std::int64_t index, PictureDecoder& decoder, const PartChoice& choose,
              std::int64_t side, std::uint8_t* out, CutTarget* later) const override;

 private:
  std::string folder_;
  std::map<std::string, std::int64_t> others_;
  std::string names_;                   ///< all paths below the folder, concatenated
  std::vector<std::size_t> places_{0};  ///< offset of each name in names_, and the end of the last
};

}  // namespace starling
