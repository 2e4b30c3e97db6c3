// Folders of pictures, path/train/<class>/… and path/val/<class>/…
#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "apps/pictures/picture.h"
#include "apps/trainer/data/builtin.h"
#include "apps/trainer/data/picture_index.h"
#include "core/log.h"
#include "core/random.h"

namespace starling {
namespace {

constexpr std::int64_t kBadFilesNamed = 5;  ///< by each rank; more are counted

class ImageFolder final : public BuiltinDataset {
 public:
  ImageFolder(ConfigSection& section, std::uint64_t seed)
      : BuiltinDataset(
            Shape{section.integer("image_size", 224, Range::closed(1, 4096), "height and width of a training crop, in pixels"), 0, 3}, 1),
        seed_(seed) {
    info_.image[1] = info_.image[0];
    path_ = section.text("path", "build/data/imagenet", "folder that holds train/<class>/ and val/<class>/");
    rule_.resize = section.integer("test_resize", 256, Range::closed(1, 8192), "shorter side of a test image after resizing");
    const std::int64_t crop =
        section.integer("test_crop", 224, Range::closed(1, 4096), "height and width of the centre crop of a test image");
    if (crop > rule_.resize && !section.describing()) section.error("test_crop", "is larger than test_resize");
    if (crop != info_.image[0]) info_.test_image = Shape{crop, crop, 3};
    crop_ = crop;
    val_fraction_ = section.number("val_fraction", 0.0, Range::half_open(0.0, 1.0),
                                   "share of each class in train/ that is for tests, where there is no val/; drawn by the config's seed");
    skip_ = section.choice("on_bad_image", "error", {"error", "skip"},
                           "a file that cannot be decoded ends the run, or the next one of its class stands in for it") == "skip";
    settings_.max_pixels = section.integer("max_pixels", 200'000'000, Range::at_least(1), "larger pictures are refused");
    const std::int64_t classes = section.integer("classes", 1000, Range::closed(1, 1 << 24),
                                                 "number of classes, for --dry-run where the folder is not there; else its folders decide");
    const std::int64_t train = section.integer("train_samples", 1281167, Range::at_least(1), "training images, for --dry-run (ImageNet's)");
    const std::int64_t test = section.integer("test_samples", 50000, Range::at_least(1), "test images, for --dry-run (ImageNet's)");
    read_limits(section);
    read_normalize(section, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
    set_samples(train, test);
    info_.complexity = "bytes";
    info_.pictures = rule_;
    info_.classes = classes;
    if (section.describing()) return;
    info_.class_names = class_folders(path_ + "/train");
    if (info_.class_names.empty()) return;
    info_.classes = static_cast<std::int64_t>(info_.class_names.size());
    section.resolve("classes", info_.classes);
  }

  void set_interpolation(Interpolation interpolation) override {
    settings_.interpolation = rule_.interpolation = interpolation;
    info_.pictures = rule_;
  }

  void open() override {
    if (train_) return;
    if (info_.class_names.empty()) {
      fail(ExitCode::kUsage, "data",
           "image_folder: {0}/train has no class folders; needed: {0}/train/<class>/*.jpg and {0}/val/<class>/*.jpg", path_);
    }
    auto train = std::make_unique<PictureIndex>(path_ + "/train");
    const std::string val = path_ + "/val";
    if (!class_folders(val).empty()) {
      if (val_fraction_ > 0.0)
        fail(ExitCode::kUsage, "data", "image_folder: data.val_fraction is {}, but there is {}; leave one of them out", val_fraction_, val);
      auto test = std::make_unique<PictureIndex>(val);
      check_classes(*train, *test);
      test_ = std::move(test);
    } else if (val_fraction_ == 0.0) {
      fail(ExitCode::kUsage, "data",
           "image_folder: there are no class folders in {}; needed: these, or \"val_fraction\": 0.1 to set a part of train/ aside", val);
    }
    split(*train);
    train_ = std::move(train);
    set_samples(static_cast<std::int64_t>(train_samples_.size()), test_ ? test_->size() : static_cast<std::int64_t>(test_samples_.size()));
  }

  std::int64_t label(Split split, std::int64_t index) const override {
    const auto [files, number] = place(split, index);
    return files->label(number);
  }
  double complexity(Split split, std::int64_t index) const override {
    const auto [files, number] = place(split, index);
    return static_cast<double>(files->bytes(number));
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override { decode(split, index, {}, out); }
  void read_part(Split split, std::int64_t index, const PictureChoice& choose, std::span<std::byte* const> out) const override {
    decode(split, index, choose, reinterpret_cast<std::uint8_t*>(out[0]));
    write_label(label(split, index), out[1]);
  }

 private:
  struct FilePlace {
    const PictureIndex* files;
    std::int64_t number;
  };

  FilePlace place(Split split, std::int64_t index) const {
    if (!train_) fail(ExitCode::kInternal, "data", "image_folder was read without being open");
    if (split == Split::kTrain) return {train_.get(), train_samples_[static_cast<std::size_t>(index)]};
    return test_ ? FilePlace{test_.get(), index} : FilePlace{train_.get(), test_samples_[static_cast<std::size_t>(index)]};
  }

  void check_classes(const PictureIndex& train, const PictureIndex& test) const {
    if (train.classes() == test.classes()) return;
    const auto lacking = [](const PictureIndex& of, const PictureIndex& in) -> std::string {
      const std::set<std::string> known(in.classes().begin(), in.classes().end());
      for (const std::string& name : of.classes()) {
        if (known.count(name) == 0) return name;
      }
      return "";
    };
    const std::string only_train = lacking(train, test), only_test = lacking(test, train);
    fail(ExitCode::kUsage, "data",
         "image_folder: {0}/train has {1} classes and {0}/val {2}: {3} is in {4}/ alone; needed: the same folders in both", path_,
         train.classes().size(), test.classes().size(), only_train.empty() ? only_test : only_train, only_train.empty() ? "val" : "train");
  }

  /// Which files are training's: all of train/, or without the share of each class that is set aside.
  void split(const PictureIndex& train) {
    train_samples_.clear();
    test_samples_.clear();
    for (std::int64_t label = 0; label < static_cast<std::int64_t>(train.classes().size()); ++label) {
      const std::int64_t begin = train.first(label), count = train.first(label + 1) - begin;
      const std::int64_t aside = static_cast<std::int64_t>(static_cast<double>(count) * val_fraction_);
      std::vector<std::int64_t> order = random_permutation(seed_, RandomStream::kPartition, static_cast<std::uint32_t>(label), count);
      for (std::int64_t& file : order) file += begin;
      std::sort(order.begin(), order.begin() + aside);
      std::sort(order.begin() + aside, order.end());
      test_samples_.insert(test_samples_.end(), order.begin(), order.begin() + aside);
      train_samples_.insert(train_samples_.end(), order.begin() + aside, order.end());
    }
    if (val_fraction_ > 0.0 && test_samples_.empty())
      fail(ExitCode::kUsage, "data", "image_folder: data.val_fraction {} of no class in {}/train is a whole picture; use a larger one",
           val_fraction_, path_);
  }

  void decode(Split split, std::int64_t index, const PictureChoice& choose, std::uint8_t* out) const {
    const auto [files, number] = place(split, index);
    const std::int64_t side = split == Split::kTest ? crop_ : info_.image[0];
    const PartChoice part = [&](const PictureSize& size) {
      if (choose) {
        if (const auto chosen = choose(size)) return *chosen;
      }
      // Training images without a random part are cut as test images are, in the proportion of their sizes.
      return PicturePart::centre(size, side == crop_ ? rule_.resize : rule_.resize * side / crop_, side, side);
    };
    if (!skip_) return decode_file(files->path(number), part, side, out);
    const std::int64_t label = files->label(number), begin = files->first(label), count = files->first(label + 1) - begin;
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t other = begin + (number - begin + k) % count;
      try {
        return decode_file(files->path(other), part, side, out);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage) throw;
        if (k == 0) count_bad(error);
      }
    }
    fail(ExitCode::kUsage, "data", "image_folder: no picture of the class {} can be decoded",
         files->classes()[static_cast<std::size_t>(label)]);
  }

  void decode_file(const std::string& file, const PartChoice& part, std::int64_t side, std::uint8_t* out) const {
    thread_local PictureDecoder decoder;
    decoder.use(settings_);
    decoder.decode(read_picture_file(file), file, part, side, side, 3, out);
  }

  void count_bad(const Error& error) const {
    const std::int64_t before = bad_.fetch_add(1);
    if (before < kBadFilesNamed) log::warning("data: {}; the next of its class stands in for it", error.message());
    if (before + 1 == kBadFilesNamed) log::warning("data: more files like these will not be named");
  }

  std::uint64_t seed_;
  std::string path_;
  PictureRule rule_;
  std::int64_t crop_ = 0;
  double val_fraction_ = 0.0;
  bool skip_ = false;
  PictureSettings settings_;
  std::unique_ptr<PictureIndex> train_, test_;
  std::vector<std::int64_t> train_samples_, test_samples_;  ///< files of train/; the second where there is no val/
  mutable std::atomic<std::int64_t> bad_{0};
};

}  // namespace

void register_image_folder(DatasetRegistry& registry) {
  registry.add(
      "image_folder", [](ConfigSection& section, std::uint64_t seed) { return std::make_unique<ImageFolder>(section, seed); },
      "folders of JPEG and PNG files, one per class");
}

}  // namespace starling
