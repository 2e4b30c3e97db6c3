// The official binary files of CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning Multiple Layers of
// Features from Tiny Images", 2009; www.cs.toronto.edu/~kriz/cifar.html): records of one label byte
// (two for CIFAR-100: coarse, fine) and 3 planes of 32×32 bytes.

#include <array>
#include <string>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/files.h"

namespace starling {
namespace {

constexpr std::int64_t kCifarSide = 32, kCifarPlane = kCifarSide * kCifarSide,
                       kCifarPixels = 3 * kCifarPlane;

/// One of the two data sets, as their page describes the files.
struct CifarVariant {
  std::string name, summary, folder, remedy;
  std::vector<std::string> train_files, test_files;
  std::int64_t label_bytes, classes, train_samples, test_samples;
  std::vector<double> mean, deviation;
  /// Names in the order of the labels: batches.meta.txt, fine_label_names.txt
  std::vector<std::string> class_names;
};

const std::array<CifarVariant, 2>& cifar_variants() {
  static const std::array<CifarVariant, 2> variants{
      {{"cifar10",
        "CIFAR-10 from its official binary files",
        "cifar-10-batches-bin",
        "scripts/get_cifar10.sh DEST fetches the files; then set data.path to DEST",
        {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
         "data_batch_5.bin"},
        {"test_batch.bin"},
        1,
        10,
        50000,
        10000,
        {0.4914, 0.4822, 0.4465},
        {0.2470, 0.2435, 0.2616},
        {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}},
       {"cifar100",
        "CIFAR-100 (fine labels) from its official binary files",
        "cifar-100-binary",
        "unpack cifar-100-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html and set data.path "
        "to its folder",
        {"train.bin"},
        {"test.bin"},
        2,
        100,
        50000,
        10000,
        {0.5071, 0.4865, 0.4409},
        {0.2673, 0.2564, 0.2762},
        {"apple",       "aquarium_fish", "baby",      "bear",       "beaver",       "bed",
         "bee",         "beetle",        "bicycle",   "bottle",     "bowl",         "boy",
         "bridge",      "bus",           "butterfly", "camel",      "can",          "castle",
         "caterpillar", "cattle",        "chair",     "chimpanzee", "clock",        "cloud",
         "cockroach",   "couch",         "crab",      "crocodile",  "cup",          "dinosaur",
         "dolphin",     "elephant",      "flatfish",  "forest",     "fox",          "girl",
         "hamster",     "house",         "kangaroo",  "keyboard",   "lamp",         "lawn_mower",
         "leopard",     "lion",          "lizard",    "lobster",    "man",          "maple_tree",
         "motorcycle",  "mountain",      "mouse",     "mushroom",   "oak_tree",     "orange",
         "orchid",      "otter",         "palm_tree", "pear",       "pickup_truck", "pine_tree",
         "plain",       "plate",         "poppy",     "porcupine",  "possum",       "rabbit",
         "raccoon",     "ray",           "road",      "rocket",     "rose",         "sea",
         "seal",        "shark",         "shrew",     "skunk",      "skyscraper",   "snail",
         "snake",       "spider",        "squirrel",  "streetcar",  "sunflower",    "sweet_pepper",
         "table",       "tank",          "telephone", "television", "tiger",        "tractor",
         "train",       "trout",         "tulip",     "turtle",     "wardrobe",     "whale",
         "willow_tree", "wolf",          "woman",     "worm"}}}};
  return variants;
}

class Cifar final : public BuiltinDataset {
 public:
  Cifar(ConfigSection& section, std::uint64_t, const CifarVariant* variant)
      : BuiltinDataset(Shape{kCifarSide, kCifarSide, 3}, variant->classes), variant_(*variant) {
    path_ = section.text("path", "build/data/" + variant_.name,
                         "folder of the binary files, or the one above " + variant_.folder);
    read_limits(section, limit_, test_limit_);
    read_normalize(section, variant_.mean, variant_.deviation);
    set_samples(variant_.train_samples, variant_.test_samples);
    info_.class_names = variant_.class_names;
  }

  void open() override {
    if (!files_.empty()) return;
    const std::string folder = find_folder();
    std::vector<MappedFile> files;
    std::vector<const std::uint8_t*> train, test;
    const auto read = [&](const std::vector<std::string>& names,
                          std::vector<const std::uint8_t*>& records) {
      for (const std::string& name : names) {
        if (!file_exists(folder + "/" + name)) {
          fail(ExitCode::kUsage, "data", "{}: {}/{} is missing; {}", variant_.name, folder, name,
               variant_.remedy);
        }
        files.emplace_back(folder + "/" + name);
        add_records(files.back(), records);
      }
    };
    read(variant_.train_files, train);
    read(variant_.test_files, test);
    set_samples(std::ssize(train), std::ssize(test));
    files_ = std::move(files);
    train_ = std::move(train);
    test_ = std::move(test);
  }

  std::int64_t label(Split split, std::int64_t index) const override {
    return record(split, index)[variant_.label_bytes - 1];
  }

  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    const std::uint8_t* red = record(split, index) + variant_.label_bytes;
    const std::uint8_t *green = red + kCifarPlane, *blue = green + kCifarPlane;
    for (std::int64_t i = 0; i < kCifarPlane; ++i) {
      out[3 * i] = red[i];
      out[3 * i + 1] = green[i];
      out[3 * i + 2] = blue[i];
    }
  }

 private:
  std::string find_folder() const {
    for (const std::string& folder : {path_, path_ + "/" + variant_.folder}) {
      if (file_exists(folder + "/" + variant_.train_files.front())) return folder;
    }
    fail(ExitCode::kUsage, "data", "{}: {} is neither in {} nor in {}/{}; {}", variant_.name,
         variant_.train_files.front(), path_, path_, variant_.folder, variant_.remedy);
  }

  void add_records(const MappedFile& file, std::vector<const std::uint8_t*>& records) const {
    const auto bytes = file.bytes();
    const auto size = static_cast<std::size_t>(variant_.label_bytes + kCifarPixels);
    if (bytes.empty() || bytes.size() % size != 0) {
      fail(ExitCode::kUsage, "data",
           "{} has {} bytes, which is not a whole number of {}-byte records; is it cut short or "
           "another file?",
           file.path(), bytes.size(), size);
    }
    for (std::size_t i = 0; i < bytes.size() / size; ++i) {
      const std::uint8_t* record = bytes.data() + i * size;
      const int found = record[variant_.label_bytes - 1];
      if (found >= variant_.classes) {
        fail(ExitCode::kUsage, "data", {.file = file.path()},
             "record {} has label {}, {} has the classes 0 to {}", i, found, variant_.name,
             variant_.classes - 1);
      }
      records.push_back(record);
    }
  }

  const std::uint8_t* record(Split split, std::int64_t index) const {
    return (split == Split::kTrain ? train_ : test_)[static_cast<std::size_t>(index)];
  }

  const CifarVariant& variant_;
  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<const std::uint8_t*> train_, test_;  ///< each record's first byte, in file order
};

}  // namespace

void register_cifar(DatasetRegistry& registry) {
  for (const CifarVariant& variant : cifar_variants())
    add_dataset<Cifar>(registry, variant.name, variant.summary, &variant);
}

}  // namespace starling
