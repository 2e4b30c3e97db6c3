// Folders of JPEG files, path/train/<class>/ and path/val/<class>/. This version declares them, so that plans and dry runs work; it does
// not read JPEG.
#include <memory>
#include <string>

#include "apps/trainer/data/builtin.h"

namespace starling {
namespace {

class ImageFolder final : public BuiltinDataset {
 public:
  explicit ImageFolder(ConfigSection& section)
      : BuiltinDataset(
            Shape{section.integer("image_size", 224, Range::closed(1, 4096), "height and width of a training crop, in pixels"), 0, 3},
            section.integer("classes", 1000, Range::closed(1, 1 << 24), "number of class folders")) {
    info_.image[1] = info_.image[0];
    path_ = section.text("path", "build/data/imagenet", "folder that holds train/<class>/ and val/<class>/");
    const std::int64_t resize = section.integer("test_resize", 256, Range::closed(1, 8192), "shorter side of a test image after resizing");
    const std::int64_t crop =
        section.integer("test_crop", 224, Range::closed(1, 4096), "height and width of the centre crop of a test image");
    if (crop > resize && !section.describing()) section.error("test_crop", "is larger than test_resize");
    const std::int64_t train = section.integer("train_samples", 1281167, Range::at_least(1), "number of training images (ImageNet's)");
    const std::int64_t test = section.integer("test_samples", 50000, Range::at_least(1), "number of test images (ImageNet's)");
    read_limits(section);
    read_normalize(section, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
    set_samples(train, test);
  }

  void open() override {
    fail(
        ExitCode::kUsage, "data",
        "image_folder ({}): reading folders of JPEG files is not available in this version, only --dry-run is; known data sets that it can "
        "read: synthetic, cifar10, cifar100, mnist, fashion_mnist",
        path_);
  }

  std::int64_t label(Split, std::int64_t) const override { not_open(); }
  void image(Split, std::int64_t, std::uint8_t*) const override { not_open(); }

 private:
  [[noreturn]] static void not_open() { fail(ExitCode::kInternal, "data", "image_folder was read without being open"); }
  std::string path_;
};

}  // namespace

void register_image_folder(DatasetRegistry& registry) {
  registry.add(
      "image_folder", [](ConfigSection& section, std::uint64_t) { return std::make_unique<ImageFolder>(section); },
      "folders of JPEG files, one per class (declared; not read yet)");
}

}  // namespace starling
