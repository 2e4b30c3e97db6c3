#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/apps/data_test_support.h"

using namespace starling;
using namespace starling::test;
using Split = Dataset::Split;
using nlohmann::json;

namespace {

void append_number(Bytes& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

/// An IDX file's bytes; `salt` makes the contents of different files differ.
Bytes idx_images(std::uint32_t count, int salt) {
  Bytes bytes{0, 0, 8, 3};
  for (const std::uint32_t n : {count, 28u, 28u}) append_number(bytes, n);
  for (std::uint32_t i = 0; i < count * 784; ++i)
    bytes.push_back(static_cast<std::uint8_t>(i * 13 + i / 784 + static_cast<std::uint32_t>(salt)));
  return bytes;
}
Bytes idx_labels(std::uint32_t count) {
  Bytes bytes{0, 0, 8, 1};
  append_number(bytes, count);
  for (std::uint32_t i = 0; i < count; ++i)
    bytes.push_back(static_cast<std::uint8_t>((i * 3) % 10));
  return bytes;
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes out(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<std::uint8_t*>(bytes.data());
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// A folder with a small MNIST: 7 training and 3 test images.
struct MnistFolder : Folder {
  explicit MnistFolder(bool compressed = false) {
    const std::string end = compressed ? ".gz" : "";
    const auto put = [&](const std::string& name, const Bytes& bytes) {
      write_bytes(*this / (name + end), compressed ? gzip(bytes) : bytes);
    };
    put("train-images-idx3-ubyte", idx_images(7, 1));
    put("train-labels-idx1-ubyte", idx_labels(7));
    put("t10k-images-idx3-ubyte", idx_images(3, 50));
    put("t10k-labels-idx1-ubyte", idx_labels(3));
  }
  std::string error() const {
    return error_of(ExitCode::kUsage, [&] {
      make_dataset({{"type", "mnist"}, {"path", path()}})->open();
    });
  }
};

Bytes cifar_records(int count, int label_bytes, int classes, int salt) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    if (label_bytes == 2) bytes.push_back(200);  // the coarse label is not looked at
    bytes.push_back(static_cast<std::uint8_t>((i * 7 + salt) % classes));
    for (int k = 0; k < 3072; ++k)
      bytes.push_back(static_cast<std::uint8_t>(k / 1024 * 64 + k % 61 + i + salt));
  }
  return bytes;
}

/// data_batch_1 … 5 with 1 … 5 records, test_batch with 2.
void write_cifar10(const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (int f = 1; f <= 5; ++f)
    write_bytes(folder + "/data_batch_" + std::to_string(f) + ".bin", cifar_records(f, 1, 10, f));
  write_bytes(folder + "/test_batch.bin", cifar_records(2, 1, 10, 9));
}

std::string cifar_error(const std::string& folder) {
  return test::error_text([&] { make_dataset({{"type", "cifar10"}, {"path", folder}})->open(); });
}

}  // namespace

TEST_CASE("apps/data: declared sizes need no files") {
  const auto sizes = [](json data) {
    const ImageInfo info = make_dataset(std::move(data))->images();
    return std::vector<std::int64_t>{info.image[0], info.image[1],      info.image[2],
                                     info.classes,  info.train_samples, info.test_samples};
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK(sizes({{"type", "cifar10"}, {"path", "nowhere"}}) == Sizes{32, 32, 3, 10, 50000, 10000});
  CHECK(sizes({{"type", "cifar100"}}) == Sizes{32, 32, 3, 100, 50000, 10000});
  CHECK(sizes({{"type", "mnist"}}) == Sizes{28, 28, 1, 10, 60000, 10000});
  CHECK(sizes({{"type", "fashion_mnist"}, {"limit", 100}, {"test_limit", 20000}}) ==
        Sizes{28, 28, 1, 10, 100, 10000});
  CHECK(sizes({{"type", "synthetic"}}) == Sizes{32, 32, 3, 10, 10000, 2000});
  CHECK(sizes({{"type", "synthetic"},
               {"image_size", 8},
               {"channels", 1},
               {"classes", 3},
               {"limit", 70},
               {"test_limit", 5}}) == Sizes{8, 8, 1, 3, 70, 5});
  CHECK(sizes({{"type", "image_folder"}, {"path", "nowhere"}}) ==
        Sizes{224, 224, 3, 1000, 1281167, 50000});
}

TEST_CASE("apps/data: normalize takes one number per channel") {
  const auto info = make_dataset({{"type", "cifar10"}})->images();
  CHECK(info.mean[1] == 0.4822);
  CHECK(info.std[2] == 0.2616);
  CHECK(make_dataset({{"type", "mnist"}, {"normalize", {{"mean", {0.5}}, {"std", {2.0}}}}})
            ->images()
            .std[0] == 2.0f);
}

TEST_CASE("apps/data: MNIST files, plain and compressed") {
  for (const bool compressed : {false, true}) {
    const MnistFolder folder(compressed);
    const auto dataset = make_dataset({{"type", "mnist"}, {"path", folder.path()}, {"limit", 6}});
    dataset->open();
    CHECK(dataset->info().train_samples == 6);
    CHECK(dataset->info().test_samples == 3);
    Bytes image(784);
    dataset->image(Split::kTrain, 5, image.data());
    const Bytes file = idx_images(7, 1);
    CHECK(image == Bytes(file.begin() + 16 + 5 * 784, file.begin() + 16 + 6 * 784));
    CHECK(dataset->label(Split::kTrain, 5) == 5);
    CHECK(dataset->label(Split::kTest, 2) == 6);
    dataset->image(Split::kTest, 2, image.data());
    const Bytes test_file = idx_images(3, 50);
    CHECK(image == Bytes(test_file.end() - 784, test_file.end()));
  }
}

TEST_CASE("apps/data: damaged MNIST files are errors that name the file") {
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const auto with = [](const std::string& name, Bytes bytes) {
    const MnistFolder folder;
    write_bytes(folder / name, bytes);
    const std::string error = folder.error();
    CHECK(contains(error, folder / name));
    return error;
  };
  const auto changed = [](Bytes bytes, std::size_t at, std::uint8_t value) {
    bytes.at(at) = value;
    return bytes;
  };
  const Bytes good = idx_images(7, 1), good_labels = idx_labels(7);

  CHECK(contains(with(images, {}), "ends inside its header"));
  CHECK(contains(with(images, Bytes(good.begin(), good.begin() + 15)), "ends inside its header"));
  CHECK(contains(with(images, changed(good, 0, 1)), "not an IDX file"));
  CHECK(contains(with(images, changed(good, 2, 9)), "element type 9"));
  CHECK(contains(with(images, changed(good, 3, 1)), "1 dimensions, expected 3"));
  CHECK(contains(with(images, changed(good, 7, 0)), "no samples"));
  CHECK(contains(with(images, changed(good, 11, 27)), "27×28"));
  CHECK(contains(with(images, changed(good, 15, 29)), "28×29"));
  // declares 4 billion images
  CHECK(contains(with(images, changed(good, 4, 255)), "only 5488 bytes"));
  CHECK(contains(with(images, Bytes(good.begin(), good.end() - 1)), "only 5487 bytes"));
  Bytes longer = good;
  longer.push_back(0);
  CHECK(contains(with(images, longer), "more bytes"));
  CHECK(contains(with(labels, changed(good_labels, 3, 3)), "expected 1"));
  CHECK(contains(with(labels, changed(good_labels, 8 + 4, 10)), "record 4 has label 10"));
  CHECK(contains(with(labels, idx_labels(6)), "7 images"));

  const MnistFolder folder;
  std::filesystem::remove(folder / images);
  CHECK(contains(folder.error(), folder / images));
  CHECK(contains(folder.error(), "data.path"));
}

TEST_CASE("apps/data: damaged gzip archives") {
  const std::string name = "t10k-images-idx3-ubyte.gz";
  const Bytes good = gzip(idx_images(3, 50));
  const auto with = [&](const Bytes& bytes) {
    const MnistFolder folder(true);
    write_bytes(folder / name, bytes);
    const std::string error = folder.error();
    CHECK(contains(error, folder / name));
    return error;
  };
  CHECK(contains(with(Bytes(good.begin(), good.end() - 20)), "cut short"));
  // all of the data, but half of the trailer
  CHECK(contains(with(Bytes(good.begin(), good.end() - 4)), "cut short"));
  for (const std::size_t at : {good.size() / 2, good.size() - 8}) {  // the data, the sum
    Bytes damaged = good;
    damaged.at(at) ^= 0xff;
    CHECK(with(damaged) != "");
  }
}

TEST_CASE("apps/data: CIFAR-10 binary files in the folder or one below") {
  for (const std::string below : {"", "/cifar-10-batches-bin"}) {
    const Folder folder;
    write_cifar10(folder.path() + below);
    const auto dataset =
        make_dataset({{"type", "cifar10"}, {"path", folder.path()}, {"test_limit", 1}});
    dataset->open();
    CHECK(dataset->info().train_samples == 15);
    CHECK(dataset->info().test_samples == 1);
    // Sample 8 is record 2 of data_batch_4.
    const Bytes file = cifar_records(4, 1, 10, 4);
    CHECK(dataset->label(Split::kTrain, 8) == (2 * 7 + 4) % 10);
    Bytes image(3072);
    dataset->image(Split::kTrain, 8, image.data());
    bool same = true;
    for (std::size_t i = 0; i < 1024; ++i) {
      for (std::size_t c = 0; c < 3; ++c)
        same = same && image[3 * i + c] == file[2 * 3073 + 1 + c * 1024 + i];
    }
    CHECK(same);
  }
}

TEST_CASE("apps/data: CIFAR-100 takes the fine label") {
  const Folder folder;
  std::filesystem::create_directories(folder / "cifar-100-binary");
  write_bytes(folder / "cifar-100-binary/train.bin", cifar_records(20, 2, 100, 5));
  write_bytes(folder / "cifar-100-binary/test.bin", cifar_records(3, 2, 100, 0));
  const auto dataset = make_dataset({{"type", "cifar100"}, {"path", folder.path()}});
  dataset->open();
  CHECK(dataset->info().train_samples == 20);
  CHECK(dataset->label(Split::kTrain, 13) == 96);
  Bytes image(3072);
  dataset->image(Split::kTrain, 13, image.data());
  CHECK(image[1] == 64 + 1024 % 61 + 13 + 5);  // green of the first pixel
}

TEST_CASE("apps/data: missing, damaged and mislabelled CIFAR files") {
  const Folder folder;
  CHECK(contains(cifar_error(folder.path()), folder.path() + "/cifar-10-batches-bin"));
  CHECK(contains(cifar_error(folder.path()), "get_cifar10.sh"));

  write_cifar10(folder.path());
  CHECK(cifar_error(folder.path()) == "");
  std::filesystem::remove(folder / "data_batch_3.bin");
  CHECK(contains(cifar_error(folder.path()), "data_batch_3.bin is missing"));

  Bytes records = cifar_records(3, 1, 10, 3);
  records.pop_back();
  write_bytes(folder / "data_batch_3.bin", records);
  CHECK(contains(cifar_error(folder.path()), "data_batch_3.bin has 9218 bytes"));
  write_bytes(folder / "data_batch_3.bin", {});
  CHECK(contains(cifar_error(folder.path()), "data_batch_3.bin has 0 bytes"));

  records = cifar_records(3, 1, 10, 3);
  records[2 * 3073] = 10;
  write_bytes(folder / "data_batch_3.bin", records);
  CHECK(contains(cifar_error(folder.path()), "data_batch_3.bin: record 2 has label 10"));

  std::filesystem::remove(folder / "data_batch_3.bin");
  std::filesystem::create_directory(folder / "data_batch_3.bin");
  CHECK(contains(cifar_error(folder.path()), "data_batch_3.bin"));
}

TEST_CASE(
    "apps/data: synthetic images depend on the seed, split and index alone, and can be learnt") {
  const json data{{"type", "synthetic"},
                  {"image_size", 16},
                  {"classes", 4},
                  {"limit", 400},
                  {"test_limit", 100}};
  const auto one = make_dataset(data, 5), same = make_dataset(data, 5),
             other = make_dataset(data, 6);
  for (const auto& dataset : {one.get(), same.get(), other.get()}) dataset->open();
  const auto image = [](const ImageDataset& dataset, Split split, std::int64_t index) {
    Bytes bytes(16 * 16 * 3);
    dataset.image(split, index, bytes.data());
    return bytes;
  };
  CHECK(image(*one, Split::kTrain, 7) == image(*same, Split::kTrain, 7));
  CHECK(image(*one, Split::kTrain, 7) != image(*other, Split::kTrain, 7));
  CHECK(image(*one, Split::kTrain, 7) != image(*one, Split::kTest, 7));
  CHECK(image(*one, Split::kTrain, 7) != image(*one, Split::kTrain, 8));

  // The nearest class mean of the training images tells most test images, though not all pixels are
  // alike.
  std::vector<std::vector<double>> means(4, std::vector<double>(768));
  std::vector<int> counts(4);
  for (std::int64_t i = 0; i < 400; ++i) {
    const auto k = static_cast<std::size_t>(one->label(Split::kTrain, i));
    const Bytes bytes = image(*one, Split::kTrain, i);
    for (std::size_t p = 0; p < 768; ++p) means[k][p] += bytes[p];
    ++counts[k];
  }
  for (std::size_t k = 0; k < 4; ++k) {
    CHECK(counts[k] > 50);
    for (double& value : means[k]) value /= counts[k];
  }
  int right = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const Bytes bytes = image(*one, Split::kTest, i);
    std::size_t best = 0;
    double least = 1e300;
    for (std::size_t k = 0; k < 4; ++k) {
      double distance = 0.0;
      for (std::size_t p = 0; p < 768; ++p)
        distance += (bytes[p] - means[k][p]) * (bytes[p] - means[k][p]);
      if (distance < least) least = distance, best = k;
    }
    right += static_cast<std::int64_t>(best) == one->label(Split::kTest, i);
  }
  CHECK(right > 80);
}

TEST_CASE("apps/data: synthetic images of any size and channel count") {
  for (const int size : {1, 5, 28, 33, 64}) {
    for (const int channels : {1, 2, 3, 4}) {
      const auto dataset = make_dataset({{"type", "synthetic"},
                                         {"image_size", size},
                                         {"channels", channels},
                                         {"classes", 2},
                                         {"limit", 4},
                                         {"test_limit", 4}});
      dataset->open();
      const auto bytes = static_cast<std::size_t>(size * size * channels);
      Bytes image(bytes + 1, 0xAB);
      dataset->image(Split::kTrain, 3, image.data());
      CHECK(image[bytes] == 0xAB);
      CHECK(dataset->label(Split::kTrain, 3) < 2);
    }
  }
}

TEST_CASE(
    "apps/data: the first images for initial values are the training set's first, normalised") {
  const NumberedDataset data(7, 3);
  for (const std::int64_t count : {0, 4, 9}) {
    const FirstSamples images = first_samples(data, count);
    REQUIRE(images.count() == std::min<std::int64_t>(count, 7));
    for (std::int64_t i = 0; i < images.count(); ++i) {
      Bytes bytes(90);
      data.image(Split::kTrain, i, bytes.data());
      for (std::size_t k = 0; k < 90; ++k) {
        const ImageInfo info = data.images();
        const double expected = (bytes[k] / 255.0 - info.mean[k % 3]) / info.std[k % 3];
        CHECK(images.numbers[static_cast<std::size_t>(i) * 90 + k] ==
              doctest::Approx(expected).epsilon(1e-12));
      }
    }
  }
}
