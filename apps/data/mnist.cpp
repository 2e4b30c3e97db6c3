// MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747) from IDX files,
// plain or .gz. An IDX file is two zero bytes, the element type (8: unsigned byte), the number of
// dimensions, each dimension as a big-endian 32-bit number, then the elements.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/files.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::int64_t kMnistSide = 28, kMnistPixels = kMnistSide * kMnistSide, kMnistClasses = 10;

struct MnistVariant {
  std::string name, summary, path, remedy;
  double mean, deviation;
  std::vector<std::string> class_names;
};

const std::array<MnistVariant, 2>& mnist_variants() {
  static const std::array<MnistVariant, 2> variants{
      {{"mnist",
        "MNIST from its IDX files",
        "build/data/mnist",
        "put the four IDX files of MNIST, plain or .gz, there, or set data.path",
        0.1307,
        0.3081,
        {}},
       {"fashion_mnist",
        "Fashion-MNIST from its IDX files (Debian: dataset-fashion-mnist)",
        "/usr/share/datasets/fashion-mnist",
        "install Debian's package (apt install dataset-fashion-mnist), or set data.path to the "
        "folder of its four files",
        0.2860,
        0.3530,
        {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
         "Ankle boot"}}}};
  return variants;
}

/// Images or labels of one split as they came from a file.
struct IdxFile {
  std::string path;
  std::int64_t count = 0;
  std::vector<std::uint8_t> elements;
};

/// Reads an IDX file of unsigned bytes whose dimensions are {any count, item...}.
IdxFile read_idx(const std::string& path, std::span<const std::int64_t> item) {
  PackedFile reader(path);
  const std::size_t dimensions = item.size() + 1, header_bytes = 4 + 4 * dimensions;
  const auto header = reader.read(header_bytes);
  if (header.size() < header_bytes) {
    fail(ExitCode::kUsage, "data", "{} ends inside its header, after {} of {} bytes", path,
         header.size(), header_bytes);
  }
  if (header[0] != 0 || header[1] != 0) {
    fail(ExitCode::kUsage, "data",
         "{} is not an IDX file: it starts with bytes {} and {} where two zeros belong", path,
         header[0], header[1]);
  }
  if (header[2] != 8)
    fail(ExitCode::kUsage, "data", {.file = path},
         "IDX element type {}, expected 8 (unsigned bytes)", header[2]);
  if (header[3] != dimensions) {
    fail(ExitCode::kUsage, "data", {.file = path}, "{} dimensions, expected {} ({})", header[3],
         dimensions, item.empty() ? "labels" : "images");
  }
  const auto dimension = [&](std::size_t i) {
    const std::uint8_t* p = header.data() + 4 + 4 * i;
    return (std::int64_t{p[0]} << 24) | (std::int64_t{p[1]} << 16) | (std::int64_t{p[2]} << 8) |
           std::int64_t{p[3]};
  };
  IdxFile file{path, dimension(0), {}};
  if (file.count == 0) fail(ExitCode::kUsage, "data", "{} declares no samples", path);
  std::int64_t item_size = 1;
  for (std::size_t i = 0; i < item.size(); ++i) {
    if (dimension(i + 1) != item[i]) {
      fail(ExitCode::kUsage, "data", {.file = path}, "images of {}×{} pixels, expected {}×{}",
           dimension(1), dimension(2), item[0], item[1]);
    }
    item_size *= item[i];
  }
  const auto bytes = static_cast<std::uint64_t>(file.count * item_size);
  // Reads one byte more: it must not exist, and reading to the end verifies an archive's checksum.
  file.elements = reader.read(bytes + 1);
  if (file.elements.size() != bytes) {
    fail(ExitCode::kUsage, "data", {.file = path},
         "the header declares {} of {}, {} follow; is the file cut short or damaged?",
         counted(file.count, "sample"), counted(item_size, "byte"),
         file.elements.size() < bytes ? fmt::format("only {} bytes", file.elements.size())
                                      : "more bytes than that");
  }
  return file;
}

class Mnist final : public BuiltinDataset {
 public:
  Mnist(ConfigSection& section, std::uint64_t, const MnistVariant* variant)
      : BuiltinDataset(Shape{kMnistSide, kMnistSide, 1}, kMnistClasses), variant_(*variant) {
    path_ = section.text("path", variant_.path, "folder of the four IDX files, plain or .gz");
    read_limits(section, limit_, test_limit_);
    read_normalize(section, {variant_.mean}, {variant_.deviation});
    set_samples(60000, 10000);
    info_.class_names = variant_.class_names;
  }

  void open() override {
    if (!train_.images.empty()) return;
    Samples train = read("train"), test = read("t10k");
    set_samples(std::ssize(train.labels), std::ssize(test.labels));
    train_ = std::move(train);
    test_ = std::move(test);
  }

  std::int64_t label(Split split, std::int64_t index) const override {
    return samples(split).labels[static_cast<std::size_t>(index)];
  }
  void image(Split split, std::int64_t index, std::uint8_t* out) const override {
    std::memcpy(out, samples(split).images.data() + index * kMnistPixels,
                static_cast<std::size_t>(kMnistPixels));
  }

 private:
  struct Samples {
    std::vector<std::uint8_t> images, labels;
  };
  const Samples& samples(Split split) const { return split == Split::kTrain ? train_ : test_; }

  std::string find(const std::string& name) const {
    for (const std::string& path : {path_ + "/" + name, path_ + "/" + name + ".gz"}) {
      if (file_exists(path)) return path;
    }
    fail(ExitCode::kUsage, "data", "{}: neither {}/{} nor {}.gz is there; {}", variant_.name, path_,
         name, name, variant_.remedy);
  }

  Samples read(const std::string& prefix) const {
    IdxFile images = read_idx(find(prefix + "-images-idx3-ubyte"),
                              std::vector<std::int64_t>{kMnistSide, kMnistSide});
    IdxFile labels = read_idx(find(prefix + "-labels-idx1-ubyte"), {});
    if (images.count != labels.count) {
      fail(ExitCode::kUsage, "data", "{} holds {} images but {} holds {} labels", images.path,
           images.count, labels.path, labels.count);
    }
    for (std::size_t i = 0; i < labels.elements.size(); ++i) {
      if (labels.elements[i] >= kMnistClasses) {
        fail(ExitCode::kUsage, "data", {.file = labels.path},
             "record {} has label {}, {} has the classes 0 to {}", i, labels.elements[i],
             variant_.name, kMnistClasses - 1);
      }
    }
    return {std::move(images.elements), std::move(labels.elements)};
  }

  const MnistVariant& variant_;
  std::string path_;
  Samples train_, test_;
};

}  // namespace

void register_mnist(DatasetRegistry& registry) {
  for (const MnistVariant& variant : mnist_variants())
    add_dataset<Mnist>(registry, variant.name, variant.summary, &variant);
}

}  // namespace starling
