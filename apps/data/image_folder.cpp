// Folders of pictures, path/train/<class>/… and path/val/<class>/…
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/data/files.h"
#include "apps/data/picture_dataset.h"
#include "apps/data/picture_index.h"
#include "core/error.h"
#include "core/file_io.h"

namespace starling {
namespace {

/// The files of one folder of classes.
class FolderPictures final : public PictureSource {
 public:
  explicit FolderPictures(const std::string& folder) : index_(folder) {}
  const std::vector<std::string>& classes() const override { return index_.classes(); }
  std::int64_t size() const override { return index_.size(); }
  std::int64_t first(std::int64_t label) const override { return index_.first(label); }
  std::int64_t label(std::int64_t index) const override { return index_.label(index); }
  std::int64_t bytes(std::int64_t index) const override { return index_.bytes(index); }
  std::string name(std::int64_t index) const override { return std::string(index_.name(index)); }
  std::map<std::string, std::int64_t> other_files() const override { return index_.others(); }
  std::map<std::string, std::uint32_t> checksums(const std::string& split) const override {
    const std::string& names = index_.names();
    return {{"names of pictures in " + split + "/",
             checksum_of({reinterpret_cast<const std::uint8_t*>(names.data()), names.size()})}};
  }
  void decode(std::int64_t index, PictureDecoder& decoder, const PartChoice& choose,
              std::int64_t side, std::uint8_t* out, CutTarget* later) const override {
    const std::string file = index_.path(index);
    const std::vector<std::uint8_t> bytes = read_picture_file(file);
    if (later) return decoder.decode(bytes, file, choose, side, side, *later);
    decoder.decode(bytes, file, choose, side, side, 3, out);
  }

 private:
  PictureIndex index_;
};

}  // namespace

std::unique_ptr<PictureSource> folder_pictures(const std::string& folder) {
  if (class_folders(folder).empty()) {
    std::error_code error;
    fail(ExitCode::kUsage, "data", {.file = folder, .key = "data.val_path"},
         "{}; needed: a folder of classes, {}/<class>/*.jpg",
         std::filesystem::exists(folder, error) ? "has no class folders" : what_is_missing(folder),
         folder);
  }
  return std::make_unique<FolderPictures>(folder);
}

namespace {

class ImageFolder final : public PictureDataset {
 public:
  ImageFolder(ConfigSection& section, std::uint64_t seed)
      : PictureDataset(section, seed, "image_folder", "build/data/imagenet",
                       "folder that holds train/<class>/ and val/<class>/") {
    section.finish();  // reports wrong keys before folders are read
    know_classes(section, class_folders(path() + "/train"));
  }

 private:
  void look_for_sources() const override {
    if (info_.class_names.empty()) {
      const std::string train = path() + "/train", missing = what_is_missing(train);
      fail(ExitCode::kUsage, "data",
           "image_folder: {}; needed: {}/<class>/*.jpg and {}/val/<class>/*.jpg",
           missing.empty() ? train + " has no class folders" : missing, train, path());
    }
  }
  Sources open_sources() override {
    look_for_sources();
    Sources sources;
    sources.train = std::make_unique<FolderPictures>(path() + "/train");
    if (!class_folders(path() + "/val").empty())
      sources.test = std::make_unique<FolderPictures>(path() + "/val");
    return sources;
  }
};

}  // namespace

void register_image_folder(DatasetRegistry& registry) {
  registry.add(
      "image_folder",
      [](ConfigSection& section, std::uint64_t seed) {
        return std::make_unique<ImageFolder>(section, seed);
      },
      "folders of JPEG and PNG files, one per class");
}

}  // namespace starling
