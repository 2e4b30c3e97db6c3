// Folders of pictures, path/train/<class>/… and path/val/<class>/…
#include <cstdint>
#include <memory>
#include <string>

#include "apps/data/picture_dataset.h"
#include "core/error.h"
#include "core/file_io.h"

namespace starling {
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
    sources.train = std::make_unique<PictureIndex>(path() + "/train");
    if (!class_folders(path() + "/val").empty())
      sources.test = std::make_unique<PictureIndex>(path() + "/val");
    return sources;
  }
};

}  // namespace

void register_image_folder(DatasetRegistry& registry) {
  add_dataset<ImageFolder>(registry, "image_folder",
                           "folders of JPEG and PNG files, one per class");
}

}  // namespace starling
