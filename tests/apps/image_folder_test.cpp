#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "apps/data/loader.h"
#include "apps/data/picture_index.h"
#include "apps/data/workers.h"
#include "apps/pictures/picture.h"
#include "tests/apps/epoch_samples.h"
#include "tests/apps/picture_tree.h"

// Folders of pictures, made of the golden ones.
using namespace starling;
using namespace starling::test;

namespace {

namespace fs = std::filesystem;
using FolderSplit = Dataset::Split;

/// Training's way, or tests'.
std::vector<std::uint8_t> decoded_alone(const std::string& file, const PartChoice& part,
                                        bool scaled = true) {
  PictureDecoder decoder({.scaled_decoding = scaled});
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  decoder.decode(read_picture_file(file), file, part, 16, 16, 3, pixels.data());
  return pixels;
}

}  // namespace

TEST_CASE("image_folder: classes by folder, pictures by path, tests cut from the centre") {
  const PictureTree tree;
  const auto dataset = tree.open();
  const DatasetInfo info = dataset->info();
  CHECK(info.classes == 2);
  CHECK(info.class_names == std::vector<std::string>{"ant", "bee"});
  CHECK(info.train_samples == 5);
  CHECK(info.test_samples == 2);
  CHECK(info.complexity == "bytes");
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 5; ++i) labels.push_back(dataset->label(FolderSplit::kTrain, i));
  CHECK(labels == std::vector<std::int64_t>{0, 0, 0, 1, 1});
  const auto centre = [](const PictureSize& size) { return PicturePart::centre(size, 20, 16, 16); };
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  const char* files[] = {"train/ant/a.jpg", "train/ant/b.jpeg", "train/ant/c.png",
                         "train/bee/1.jpg", "train/bee/sub/2.PNG"};
  for (std::int64_t i = 0; i < 5; ++i) {
    dataset->image(FolderSplit::kTrain, i, pixels.data());
    CHECK(pixels == decoded_alone(tree.folder / files[i], centre));
    CHECK(dataset->complexity(FolderSplit::kTrain, i) ==
          static_cast<double>(fs::file_size(tree.folder / files[i])));
  }
  dataset->image(FolderSplit::kTest, 1, pixels.data());
  CHECK(pixels == decoded_alone(tree.folder / "val/bee/y.jpg", centre, false));
  CHECK(pixels != decoded_alone(tree.folder / "val/bee/y.jpg", centre));
}

TEST_CASE("image_folder: checksums tell pictures of other names, and nothing else") {
  const PictureTree tree;
  const auto checksums = [](const PictureTree& of) { return of.open()->info().checksums; };
  const auto known = checksums(tree);
  REQUIRE(known.size() == 2);
  CHECK(known.count("names of pictures in train/") == 1);
  CHECK(known.count("names of pictures in val/") == 1);
  CHECK(checksums(PictureTree()) == known);  // in another folder
  PictureTree other;
  fs::rename(other.folder / "val/ant/x.jpg", other.folder / "val/ant/z.jpg");
  CHECK(checksums(other).at("names of pictures in train/") ==
        known.at("names of pictures in train/"));
  CHECK(checksums(other).at("names of pictures in val/") != known.at("names of pictures in val/"));
  fs::rename(other.folder / "val/ant/z.jpg", other.folder / "val/ant/x.jpg");
  CHECK(checksums(other) == known);
  // of another class
  fs::rename(other.folder / "train/bee/1.jpg", other.folder / "train/ant/1.jpg");
  CHECK(checksums(other).at("names of pictures in train/") !=
        known.at("names of pictures in train/"));
}

TEST_CASE("image_folder: tests may have another size than training") {
  const PictureTree tree;
  const auto dataset = tree.open({{"test_crop", 20}});
  CHECK(dataset->info().tensors[0].shape == Shape{16, 16, 3});
  CHECK(dataset->images().test_image == Shape{20, 20, 3});
  CpuBackend backend;
  EvaluationLoader loader(*dataset, 2, 0, 1, backend, DType::kFloat32);
  CHECK((*loader.next())["image"].shape() == Shape{2, 20, 20, 3});
  // Training pictures that are tested are cut as tests are
  EvaluationLoader of_training(*dataset, 2, 0, 1, backend, DType::kFloat32, 1, {},
                               Dataset::Split::kTrain);
  CHECK((*of_training.next())["image"].shape() == Shape{2, 20, 20, 3});
  CHECK(of_training.next()->samples == 2);
  CHECK(of_training.next()->samples == 1);
  CHECK(of_training.next() == nullptr);
  CHECK(contains(tree.refusal({{"test_crop", 21}}), "is larger than test_resize"));
}

TEST_CASE("image_folder: what is read is what the C++ library lists, and nothing is written") {
  const PictureTree tree;
  const fs::path train = tree.folder / "train";
  const auto listed = [&] {
    const PictureIndex index(train);
    std::string all;
    for (std::int64_t i = 0; i < index.size(); ++i) {
      all += std::to_string(index.label(i)) + " " + std::string(index.name(i)) + " " +
             std::to_string(index.bytes(i)) + "\n";
      CHECK(index.path(i) == train / index.name(i));
    }
    return all;
  };
  // The same by the C++ library, which sorts paths by their parts.
  const auto expected = [&] {
    std::map<std::string, std::vector<std::string>> classes;
    for (const auto& entry : fs::recursive_directory_iterator(train)) {
      const std::string ending = entry.path().extension(),
                        name = entry.path().lexically_relative(train);
      if (entry.is_regular_file() &&
          (ending == ".jpg" || ending == ".jpeg" || ending == ".png" || ending == ".PNG"))
        classes[name.substr(0, name.find('/'))].push_back(name);
    }
    std::string all;
    int label = 0;
    for (auto& [name, files] : classes) {
      std::sort(files.begin(), files.end());
      for (const std::string& file : files)
        all += std::to_string(label) + " " + file + " " +
               std::to_string(fs::file_size(train / file)) + "\n";
      ++label;
    }
    return all;
  };
  tree.add("train/ant/new.jpg", "420.jpg");
  tree.add("train/bee/sub/deeper/3.jpg", "420.jpg");
  tree.add("train/bee/y.jpeg", "rgb8.png");
  tree.add("train/aardvark/1.jpg", "420.jpg");
  tree.folder.write("train/.starling-index", "StarIdx2");
  const auto count = [&] {
    return std::distance(fs::recursive_directory_iterator(tree.folder.path()),
                         fs::recursive_directory_iterator());
  };
  const auto before = count();
  CHECK(listed() == expected());
  fs::remove_all(train / "aardvark");
  CHECK(listed() == expected());
  CHECK(count() == before - 2);
}

TEST_CASE(
    "image_folder: what is no file but has a picture's name is named when it is read, and a folder "
    "is a folder") {
  const PictureTree tree;
  fs::create_symlink("nowhere/far.jpg", tree.folder / "train/ant/far.jpg");
  fs::create_symlink("loop.png", tree.folder / "train/ant/loop.png");
  REQUIRE(::mkfifo((tree.folder / "train/ant/pipe.JPG").c_str(), 0600) == 0);
  REQUIRE(::mknod((tree.folder / "train/ant/socket.jpeg").c_str(), S_IFSOCK | 0600, 0) == 0);
  fs::create_symlink("/dev/zero", tree.folder / "train/ant/zero.jpg");
  fs::create_symlink("nowhere/notes", tree.folder / "train/ant/notes");
  tree.add("train/bee/folder.jpg/3.jpg", "444.jpg");
  const auto strict = tree.open(), patient = tree.open({{"on_bad_image", "skip"}});
  CHECK(strict->info().train_samples == 11);
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  const auto fault = [&](std::int64_t index) {
    return error_of(ExitCode::kUsage,
                    [&] { strict->image(FolderSplit::kTrain, index, pixels.data()); });
  };
  CHECK(fault(3) == "[picture] " + tree.folder / "train/ant/far.jpg" +
                        ": cannot be read: No such file or directory");
  CHECK(contains(fault(4), "loop.png: cannot be read: Too many levels of symbolic links"));
  CHECK(contains(fault(5), "pipe.JPG: cannot be read: it is a pipe, not a regular file"));
  CHECK(contains(fault(6), "socket.jpeg: cannot be read: it is a socket, not a regular file"));
  CHECK(contains(fault(7), "zero.jpg: cannot be read: it is a device, not a regular file"));
  for (std::int64_t i = 0; i < 11; ++i) patient->image(FolderSplit::kTrain, i, pixels.data());
  CHECK(patient->bad_samples().size() == 5);
  CHECK(patient->label(FolderSplit::kTrain, 7) == 0);
  CHECK(patient->label(FolderSplit::kTrain, 9) == 1);
  CHECK(pixels == decoded_alone(tree.folder / "train/bee/sub/2.PNG", [](const PictureSize& size) {
          return PicturePart::centre(size, 20, 16, 16);
        }));
}

TEST_CASE("image_folder: a part of each class is set aside where there is no val/") {
  const PictureTree tree;
  fs::remove_all(tree.folder / "val");
  for (int i = 0; i < 20; ++i)
    tree.add("train/ant/more" + std::to_string(i) + ".jpg", i % 2 == 0 ? "420.jpg" : "444.jpg");
  CHECK(contains(tree.refusal(), "or \"val_fraction\": 0.1"));
  const auto dataset = tree.open({{"val_fraction", 0.5}}),
             again = tree.open({{"val_fraction", 0.5}});
  CHECK(dataset->info().test_samples == 13);  // 11.5 of 23 ants, 1 of 2 bees
  CHECK(dataset->info().train_samples == 12);
  std::vector<std::uint8_t> a(16 * 16 * 3), b(a.size());
  for (std::int64_t i = 0; i < 13; ++i) {
    dataset->image(FolderSplit::kTest, i, a.data());
    again->image(FolderSplit::kTest, i, b.data());
    CHECK(a == b);
    CHECK(dataset->label(FolderSplit::kTest, i) == (i < 12 ? 0 : 1));
  }
  CHECK(contains(tree.refusal({{"val_fraction", 0.01}}), "of no class in"));
}

TEST_CASE("image_folder: shares are rounded, limits take of each class in proportion") {
  const PictureTree tree;
  fs::remove_all(tree.folder / "val");
  for (int i = 0; i < 97; ++i)
    fs::create_hard_link(tree.folder / "train/ant/a.jpg",
                         tree.folder / ("train/ant/" + std::to_string(i) + ".jpg"));
  for (int i = 0; i < 48; ++i)
    fs::create_hard_link(tree.folder / "train/ant/a.jpg",
                         tree.folder / ("train/bee/b" + std::to_string(i) + ".jpg"));
  const auto counts = [&](const nlohmann::json& keys) {
    const auto dataset = tree.open(keys);
    std::vector<std::int64_t> result;
    for (const auto split : {FolderSplit::kTrain, FolderSplit::kTest}) {
      std::int64_t bees = 0;
      const std::int64_t all = split == FolderSplit::kTrain ? dataset->info().train_samples
                                                            : dataset->info().test_samples;
      for (std::int64_t i = 0; i < all; ++i) bees += dataset->label(split, i);
      result.insert(result.end(), {all - bees, bees});
    }
    return result;
  };
  // training ants and bees, test ants and bees; of 100 and 50
  using Counts = std::vector<std::int64_t>;
  // 0.29 · 50 is just below 14.5
  CHECK(counts({{"val_fraction", 0.29}}) == Counts{71, 36, 29, 14});
  CHECK(counts({{"val_fraction", 0.999}}) == Counts{1, 1, 99, 49});
  CHECK(counts({{"val_fraction", 0.5}, {"limit", 15}, {"test_limit", 8}}) == Counts{10, 5, 5, 3});
  CHECK(counts({{"val_fraction", 0.5}, {"limit", 1}, {"test_limit", 75}}) == Counts{1, 0, 50, 25});
}

TEST_CASE(
    "image_folder: with the share that a run drew, no test takes what it was trained on, whatever "
    "comes or goes") {
  const PictureTree tree;
  fs::remove_all(tree.folder / "val");
  // Sizes tell files apart.
  const auto add = [&](int number) {
    tree.add("train/ant/p" + std::to_string(number) + ".jpg", "420.jpg");
    fs::resize_file(tree.folder / ("train/ant/p" + std::to_string(number) + ".jpg"),
                    5000 + static_cast<std::uintmax_t>(number));
  };
  const auto sizes = [](const Dataset& dataset, FolderSplit split) {
    std::set<double> result;
    const DatasetInfo info = dataset.info();
    for (std::int64_t i = 0;
         i < (split == FolderSplit::kTrain ? info.train_samples : info.test_samples); ++i)
      result.insert(dataset.complexity(split, i));
    return result;
  };
  for (int i = 0; i < 40; ++i) add(i);
  const nlohmann::json keys{{"val_fraction", 0.25}};
  const auto before = tree.open(keys);
  const std::set<double> trained = sizes(*before, FolderSplit::kTrain),
                         tested = sizes(*before, FolderSplit::kTest);
  REQUIRE(before->info().test_share);
  for (int i = 0; i < 40; i += 7)
    fs::remove(tree.folder / ("train/ant/p" + std::to_string(i) + ".jpg"));
  for (int i = 40; i < 120; ++i) add(i);
  nlohmann::json all = tree.config();
  all.update(keys);
  const auto after = make_dataset(all, 8);  // of another seed
  after->use_test_share(*before->info().test_share);
  after->open();
  int old = 0;
  const std::set<double> tested_now = sizes(*after, FolderSplit::kTest);
  for (const double size : tested_now) {
    CHECK(trained.count(size) == 0);
    old += tested.count(size) != 0 ? 1 : 0;
  }
  int there = 0;
  for (const double size : tested)
    there += size < 5000 || static_cast<int>(size) % 7 != 5000 % 7 ? 1 : 0;
  CHECK(old == there);
  CHECK(tested_now.size() > static_cast<std::size_t>(old));  // and some of the new ones
}

TEST_CASE("image_folder: what is wrong with the folders is named") {
  const PictureTree tree;
  CHECK(contains(tree.refusal({{"val_fraction", 0.2}}),
                 "leave one of them out: with --set data.val_fraction=0 " + tree.folder.path() +
                     "/val is for tests"));
  tree.add("val/cow/z.jpg", "444.jpg");
  CHECK(contains(tree.refusal(),
                 "has 2 classes and " + tree.folder.path() + "/val 3: 'cow' is in val/ alone"));
  fs::remove_all(tree.folder / "val/cow");
  tree.add("train/caf\xc3\xa9/1.jpg", "444.jpg");
  tree.add("val/cafe\xcc\x81/1.jpg", "444.jpg");
  CHECK(contains(
      tree.refusal(),
      "'caf\xc3\xa9' (caf\\xc3\\xa9) is in train/ alone, 'cafe\xcc\x81' (cafe\\xcc\\x81) in val/"));
  fs::rename(tree.folder / "train/caf\xc3\xa9", tree.folder / "train/caf\xe9");
  CHECK(contains(
      tree.refusal(),
      "/train/caf\\xe9 has a name that is not UTF-8, which model files cannot keep; rename it"));
  fs::remove_all(tree.folder / "train/caf\xe9");
  fs::remove_all(tree.folder / "val/cafe\xcc\x81");
  fs::create_directory(tree.folder / "train/dog");
  CHECK(contains(tree.refusal(),
                 "the class folder " + tree.folder.path() + "/train/dog has no pictures"));
  fs::remove(tree.folder / "train/dog");
  fs::create_symlink("nowhere/dog", tree.folder / "train/dog");
  CHECK(contains(tree.refusal(),
                 "image_folder: " + tree.folder.path() +
                     "/train/dog is a link to nothing; mount what it leads to, or remove it"));
  fs::remove_all(tree.folder / "train");
  CHECK(contains(tree.refusal(), "there is no " + tree.folder / "train" + "; needed: "));
  // Without the folder there is what a dry run needs.
  const auto declared = make_dataset({{"type", "image_folder"},
                                      {"path", tree.folder / "nowhere"},
                                      {"classes", 12},
                                      {"train_samples", 99}});
  CHECK(declared->info().classes == 12);
  CHECK(declared->info().train_samples == 99);
}

TEST_CASE(
    "image_folder: a bad picture is an error that names it, or the next of its class stands in for "
    "it") {
  const PictureTree tree;
  const std::string bad = tree.folder.write("train/ant/b.jpeg", "\xff\xd8\xff\xe0 no more");
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  const auto strict = tree.open();
  const std::string text =
      error_of(ExitCode::kUsage, [&] { strict->image(FolderSplit::kTrain, 1, pixels.data()); });
  CHECK(text.starts_with("[picture] " + bad + ": cannot be decoded as JPEG"));
  const auto patient = tree.open({{"on_bad_image", "skip"}});
  patient->image(FolderSplit::kTrain, 1, pixels.data());
  CHECK(pixels == decoded_alone(tree.folder / "train/ant/c.png", [](const PictureSize& size) {
          return PicturePart::centre(size, 20, 16, 16);
        }));
  const std::vector<std::int64_t> counted = patient->bad_samples();
  CHECK(counted.size() == 1);
  for (int again = 0; again < 7; ++again) patient->image(FolderSplit::kTrain, 1, pixels.data());
  CHECK(patient->bad_samples() == counted);  // each once
  const auto small = tree.open({{"max_pixels", 100}});
  CHECK(fails(ExitCode::kUsage, "that max_pixels allows",
              [&] { small->image(FolderSplit::kTrain, 0, pixels.data()); }));
  for (const char* name : {"train/bee/1.jpg", "train/bee/sub/2.PNG"}) tree.folder.write(name, "x");
  const auto hopeless = tree.open({{"on_bad_image", "skip"}});
  CHECK(fails(ExitCode::kUsage, "no training picture of the class bee",
              [&] { hopeless->image(FolderSplit::kTrain, 3, pixels.data()); }));
}

TEST_CASE(
    "image_folder: no test picture stands in for a training one, nor the reverse, and tests leave "
    "bad ones out") {
  const PictureTree tree;
  fs::remove_all(tree.folder / "val");
  for (int i = 0; i < 9; ++i) tree.add("train/ant/more" + std::to_string(i) + ".jpg", "420.jpg");
  const nlohmann::json keys{{"val_fraction", 0.5}, {"on_bad_image", "skip"}};
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  // Which of the 12 ants are training's: those that still decode once all others are broken, one at
  // a time.
  std::vector<std::string> training, test;
  for (const auto& entry : fs::directory_iterator(tree.folder / "train/ant")) {
    const std::string path = entry.path(), name = entry.path().filename();
    if (name == "notes.txt") continue;
    fs::rename(path, path + ".kept");
    tree.folder.write("train/ant/" + name, "broken");
    const auto dataset = tree.open(keys);
    for (std::int64_t i = 0; i < 6; ++i) dataset->image(FolderSplit::kTest, i, pixels.data());
    (dataset->bad_samples().empty() ? training : test).push_back(path);
    fs::rename(path + ".kept", path);
  }
  REQUIRE(test.size() == 6);
  const auto broken = [&](const std::vector<std::string>& paths) {
    for (const std::string& path : paths)
      fs::rename(path, path + ".kept"), fs::create_symlink("nowhere", path);
    auto dataset = tree.open(keys);
    return dataset;
  };
  {
    const auto dataset = broken(test);
    CpuBackend backend;
    EvaluationLoader loader(*dataset, 4, 0, 1, backend, DType::kFloat32);
    for (int epoch = 0; epoch < 2; ++epoch) {
      const Batch* batch = loader.next();  // the bee is left, in a batch with a place for more
      REQUIRE(batch);
      CHECK(batch->samples == 1);
      CHECK((*batch)["label"].data<std::int32_t>()[0] == 1);
      CHECK(loader.next() == nullptr);
      CHECK(loader.left_out() == 6);
    }
    for (std::int64_t i = 0; i < 6; ++i) dataset->image(FolderSplit::kTrain, i, pixels.data());
    CHECK(dataset->bad_samples().size() == 6);
  }
  for (const std::string& path : test) fs::rename(path + ".kept", path);
  const auto dataset = broken(training);
  CHECK(fails(ExitCode::kUsage, "no training picture of the class ant can be decoded",
              [&] { dataset->image(FolderSplit::kTrain, 0, pixels.data()); }));
}

// Areas, shapes and places are drawn_augment_test.cpp's.
TEST_CASE(
    "random_resized_crop: the same on any rank and any number of threads, from files and from "
    "images of one size") {
  const PictureTree tree;
  CpuBackend backend;
  const auto dataset = tree.open();
  std::vector<std::vector<float>> images(5);
  const Augmenters crops = random_crops({{"scale", {0.3, 0.9}}});
  for (const int threads : {1, 3}) {
    for (const std::int64_t batch_size : {5, 2}) {
      const LoaderSettings settings{.augment = crops, .batch_size = batch_size, .threads = threads};
      Loader loader(*dataset, settings, backend, DType::kFloat32);
      const auto samples = epoch_samples(5, settings, 0);
      for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b) {
        const Batch& batch = loader.next();
        for (std::int64_t i = 0; i < batch_size; ++i) {
          const float* from = batch["image"].data<float>() + i * 16 * 16 * 3;
          std::vector<float>& image = images[static_cast<std::size_t>(
              samples[static_cast<std::size_t>(b * batch_size + i)])];
          if (image.empty()) image.assign(from, from + 16 * 16 * 3);
          CHECK(std::equal(image.begin(), image.end(), from));
        }
      }
    }
  }
  // The crop is that of the sample's random numbers, in the picture's own pixels.
  const SampleRandom random{LoaderSettings().seed, 0, 3};
  const std::vector<std::uint8_t> expected =
      decoded_alone(tree.folder / "train/bee/1.jpg",
                    [&](const PictureSize& size) { return *crops[0]->part(random, size); });
  const ImageInfo info = dataset->images();
  float worst = 0.0F;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto number =
        static_cast<float>((expected[i] / 255.0 - info.mean[i % 3]) / info.std[i % 3]);
    worst = std::max(worst, std::abs(number - images[3][i]));
  }
  CHECK(worst < 1e-5F);
  // Images of one size are cut and resized by their bytes; an even image stays as it is.
  std::vector<std::uint8_t> even(16 * 16 * 3, 77);
  CHECK(image_change(crops, 1, 0)(0, even, Shape{16, 16, 3}).flip == 0);
  CHECK(even == std::vector<std::uint8_t>(16 * 16 * 3, 77));
  std::vector<std::uint8_t> ramp(16 * 16 * 3);
  for (std::size_t i = 0; i < ramp.size(); ++i)
    ramp[i] = static_cast<std::uint8_t>(i / 3 % 16 * 10);
  const std::vector<std::uint8_t> before = ramp;
  (void)image_change(crops, 1, 0)(0, ramp, Shape{16, 16, 3});
  CHECK(ramp != before);
}

TEST_CASE("workers: each item once, errors of the first item, and again afterwards") {
  for (const int threads : {1, 2, 5}) {
    Workers workers(threads);
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<int>> done(37);
      std::vector<std::atomic<int>> inside(static_cast<std::size_t>(workers.threads()));
      std::atomic<bool> apart{true};
      workers.run(37, [&](std::int64_t item, int worker) {
        if (++inside[static_cast<std::size_t>(worker)] != 1) apart = false;
        ++done[static_cast<std::size_t>(item)];
        --inside[static_cast<std::size_t>(worker)];
      });
      CHECK(apart);
      for (const auto& count : done) CHECK(count == 1);
    }
    const auto fails = [&] {
      workers.run(20, [](std::int64_t item, int) {
        if (item >= 6) fail(ExitCode::kUsage, "data", "item {}", item);
      });
    };
    CHECK_THROWS_WITH_AS(fails(), "[data] item 6", Error);
    int sum = 0;
    std::mutex mutex;
    workers.run(10, [&](std::int64_t item, int) {
      const std::lock_guard lock(mutex);
      sum += static_cast<int>(item);
    });
    CHECK(sum == 45);
    workers.run(0, [](std::int64_t, int) { CHECK(false); });
  }
}
