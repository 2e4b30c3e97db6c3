#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/data/picture_index.h"
#include "apps/data/shards/prepare_images.h"
#include "apps/data/shards/shard_file.h"
#include "apps/pictures/picture.h"
#include "core/operations/accesses.h"
#include "core/philox.h"
#include "tests/apps/picture_tree.h"

// Shards of pictures: what starling-prepare writes, what the data set reads, and what is found and
// named where they are not what was written.
namespace starling::test {
namespace {

namespace fs = std::filesystem;
using ShardSplit = Dataset::Split;

/// A tree of pictures and shards of it, two pictures each.
struct PreparedTree {
  PictureTree tree;
  PrepareOptions options{
      .source = tree.folder.path(), .destination = tree.folder / "shards", .shard_pictures = 2};
  PrepareReport make(const PrepareWatch& watch = {}) const {
    return prepare_images(options, watch);
  }
  std::string file(const std::string& name) const { return options.destination + "/" + name; }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(options.destination))
      all[entry.path().filename()] = read_text(entry.path());
    return all;
  }
  std::unique_ptr<ImageDataset> open(nlohmann::json more = nlohmann::json::object()) const {
    more["type"] = "shards";
    more["path"] = options.destination;
    return tree.open(more);
  }
  std::string refusal(const nlohmann::json& more = nlohmann::json::object()) const {
    return error_of(ExitCode::kUsage, [&] { open(more); });
  }
};

std::vector<std::uint8_t> read_image(const ImageDataset& dataset, ShardSplit split,
                                     std::int64_t index, const Dataset::PictureChoice& choose = {},
                                     std::int64_t side = 16) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * side * side));
  std::int32_t label = -1;
  const std::array<std::byte*, 2> out{reinterpret_cast<std::byte*>(pixels.data()),
                                      reinterpret_cast<std::byte*>(&label)};
  dataset.read_part(split, index, choose, 0, out);
  CHECK(label == dataset.label(split, index));
  return pixels;
}

std::int64_t samples_of(const ImageDataset& dataset, ShardSplit split) {
  const DatasetInfo info = dataset.info();
  return split == ShardSplit::kTrain ? info.train_samples : info.test_samples;
}

void read_everything(const ImageDataset& dataset) {
  for (const ShardSplit split : {ShardSplit::kTrain, ShardSplit::kTest}) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < samples_of(dataset, split); ++i) all.push_back(i);
    dataset.will_read(split, all);
    for (const std::int64_t i : all) (void)read_image(dataset, split, i);
  }
}

/// What `check` says of a folder: its faults, or the error that ends it.
std::vector<std::string> faults_of(const std::string& folder, int threads = 1) {
  std::vector<std::string> faults;
  PrepareWatch watch;
  watch.bad = [&](const Error& error) { faults.emplace_back(error.what()); };
  try {
    const CheckReport report = check_shards(folder, threads, watch);
    CHECK(report.faults == static_cast<std::int64_t>(faults.size()));
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    faults.emplace_back(error.what());
  }
  return faults;
}

/// Writes a file anew. Some file systems bring one to the disk that is emptied and written again,
/// which takes far longer.
void rewrite(const std::string& path, const std::string& text) {
  fs::remove(path);
  write_bytes(path, Bytes(text.begin(), text.end()));
}

/// The checksums of a shard's parts, made right again: what is left to find is what the numbers
/// say.
void mend_checksums(std::string& text) {
  ShardFooter footer;
  if (text.size() < sizeof footer) return;
  char* at = text.data() + text.size() - sizeof footer;
  std::memcpy(&footer, at, sizeof footer);
  footer.bytes = text.size();
  if (footer.table_at <= text.size() - sizeof footer) {
    footer.table_checksum =
        checksum_of({reinterpret_cast<const std::uint8_t*>(text.data()) + footer.table_at,
                     text.size() - sizeof footer - footer.table_at});
  }
  footer.checksum = 0;
  footer.checksum = checksum_of(bytes_of(footer));
  std::memcpy(at, &footer, sizeof footer);
}

}  // namespace
}  // namespace starling::test

using namespace starling;
using namespace starling::test;

TEST_CASE(
    "shards: order, names and pixels are image_folder's, to the bit where nothing is resized") {
  PreparedTree prepared;
  const PrepareReport report = prepared.make();
  CHECK(report.pictures == 7);
  CHECK(report.classes == 2);
  CHECK(report.shards == 4);
  CHECK(report.made == 4);
  CHECK(faults_of(prepared.options.destination).empty());
  const auto folder = prepared.tree.open(), shards = prepared.open();
  CHECK(shards->info().class_names == folder->info().class_names);
  CHECK(shards->info().classes == 2);
  CHECK(shards->info().complexity == "bytes");
  const Augmenters crops = random_crops({{"scale", {0.2, 0.9}}});
  const ImageChange change = image_change(crops, 5, 1);
  for (const ShardSplit split : {ShardSplit::kTrain, ShardSplit::kTest}) {
    REQUIRE(samples_of(*shards, split) == samples_of(*folder, split));
    for (std::int64_t i = 0; i < samples_of(*folder, split); ++i) {
      CHECK(shards->label(split, i) == folder->label(split, i));
      CHECK(shards->complexity(split, i) == folder->complexity(split, i));
      CHECK(read_image(*shards, split, i) == read_image(*folder, split, i));
      const auto choose = [&](const PictureSize& size) { return change.part(i, size); };
      CHECK(read_image(*shards, split, i, choose) == read_image(*folder, split, i, choose));
    }
  }
  const PictureIndex index(prepared.tree.folder / "train");
  const ShardSet set(prepared.options.destination, read_shard_index(prepared.options.destination),
                     0);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto [file, record] = set.place(i);
    CHECK(prepared.tree.folder / ("train/" + file->name(record)) == index.path(i));
    const std::span<const std::uint8_t> bytes = set.bytes(i);
    CHECK(Bytes(bytes.begin(), bytes.end()) == read_picture_file(index.path(i)));
  }
}

TEST_CASE("shards: the bytes are the same for any number of threads") {
  for (const bool raw : {false, true}) {
    PreparedTree prepared;
    prepared.options.size = 20;
    prepared.options.raw = raw;
    prepared.make();
    const auto one = prepared.files();
    for (const int threads : {2, 5}) {
      fs::remove_all(prepared.options.destination);
      prepared.options.threads = threads;
      prepared.make();
      CHECK(prepared.files() == one);
      CHECK(faults_of(prepared.options.destination, threads).empty());
    }
  }
}

TEST_CASE("shards: larger pictures are resized and stored as JPEG, others keep their bytes") {
  PreparedTree prepared;
  prepared.tree.add("train/ant/d.png", "grey1.png");
  prepared.options.size = 30;
  prepared.options.quality = 95;
  prepared.make();
  const PictureIndex index(prepared.tree.folder / "train");
  const ShardSet set(prepared.options.destination, read_shard_index(prepared.options.destination),
                     0);
  PictureDecoder decoder({.scaled_decoding = false});
  bool kept = false, made = false;
  const auto all = [](const PictureSize& size) {
    return PicturePart::window(0, 0, size.height, size.width);
  };
  for (std::int64_t i = 0; i < set.records(); ++i) {
    const Bytes file = read_picture_file(index.path(i));
    const PictureSize before = decoder.size(file, "");
    const auto [shard, record] = set.place(i);
    const std::span<const std::uint8_t> bytes = set.bytes(i);
    const std::int64_t shorter = std::min(before.height, before.width);
    if (shorter <= 30) {
      CHECK(Bytes(bytes.begin(), bytes.end()) == file);
      kept = true;
      continue;
    }
    made = true;
    const PictureSize size = decoder.size(bytes, "");
    CHECK(size == PictureSize{30 * before.height / shorter, 30 * before.width / shorter});
    CHECK(shard->entry(record).height == size.height);
    Bytes expected(static_cast<std::size_t>(3 * size.height * size.width)), stored(expected.size());
    decoder.decode(file, "", all, size.height, size.width, 3, expected.data());
    decoder.decode(bytes, "", all, size.height, size.width, 3, stored.data());
    double off = 0.0;
    for (std::size_t k = 0; k < stored.size(); ++k)
      off += std::abs(int{stored[k]} - int{expected[k]});
    // what JPEG loses of these pictures, which are noise
    CHECK(off / static_cast<double>(stored.size()) < 12.0);
  }
  CHECK(made);
  CHECK(kept);
}

TEST_CASE("shards: with a quality and no size all pictures become JPEG of their own size") {
  PreparedTree prepared;
  prepared.options.quality = 60;
  prepared.make();
  const PictureIndex index(prepared.tree.folder / "train");
  const ShardSet set(prepared.options.destination, read_shard_index(prepared.options.destination),
                     0);
  PictureDecoder decoder({.scaled_decoding = false});
  const auto all = [](const PictureSize& size) {
    return PicturePart::window(0, 0, size.height, size.width);
  };
  for (std::int64_t i = 0; i < set.records(); ++i) {
    const Bytes file = read_picture_file(index.path(i));
    const auto [height, width] = decoder.size(file, "");
    Bytes pixels(static_cast<std::size_t>(3 * height * width));
    decoder.decode(file, "", all, height, width, 3, pixels.data());
    const std::span<const std::uint8_t> bytes = set.bytes(i);
    CHECK(Bytes(bytes.begin(), bytes.end()) == encode_jpeg({pixels.data(), height, width}, "", 60));
  }
  prepared.options.quality = 61;
  CHECK(fails(ExitCode::kUsage, "was made with --quality 60 --shard-pictures 2",
              [&] { prepared.make(); }));
}

TEST_CASE("shards: raw pixels are cut as PNG is") {
  PreparedTree prepared;
  fs::remove_all(prepared.tree.folder / "train");
  const char* names[] = {"palette8i.png", "rgb8.png", "turned6.png", "grey16.png"};
  for (const char* name : names)
    prepared.tree.add(std::string("train/") + (name[0] == 'g' ? "bee/" : "ant/") + name, name);
  prepared.options.raw = true;  // without a size: of each picture's own
  prepared.make();
  for (const char* filter : {"nearest", "bilinear", "bicubic"}) {
    const auto folder = prepared.tree.open(), shards = prepared.open();
    folder->set_interpolation(interpolation_of(filter));
    shards->set_interpolation(interpolation_of(filter));
    for (std::int64_t i = 0; i < 4; ++i) {
      // A picture that is turned is resized as it lies in its file: columns first, which rounds
      // otherwise.
      const int most = names[i] == std::string("turned6.png") ? 1 : 0;
      const auto compare = [&](const Dataset::PictureChoice& choose) {
        CHECK(largest_gap(read_image(*shards, ShardSplit::kTrain, i, choose),
                          read_image(*folder, ShardSplit::kTrain, i, choose)) <= most);
      };
      compare({});
      const Augmenters crops = random_crops({{"scale", {0.05, 1}}});
      for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
        const ImageChange change = image_change(crops, 3, epoch);
        compare([&](const PictureSize& size) { return change.part(i, size); });
      }
      // A window of the image's size is copied; in its corners nothing lies behind it.
      compare([](const PictureSize&) { return PicturePart::window(0, 3, 16, 16); });
      compare([](const PictureSize& size) {
        return PicturePart::window(size.height - 16, size.width - 16, 16, 16);
      });
    }
  }
  prepared.options.destination += "-small";
  prepared.options.size = 20;
  prepared.make();
  const ShardSet set(prepared.options.destination, read_shard_index(prepared.options.destination),
                     0);
  const auto [shard, record] = set.place(0);
  CHECK(std::min(shard->entry(record).height, shard->entry(record).width) == 20);
}

TEST_CASE(
    "shards: a picture whose pixels are more bytes than a record holds is refused by its header") {
  PreparedTree prepared;
  std::string png = read_text("golden/pictures/rgb8.png");
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) png.at(at + i) = static_cast<char>(value >> (24 - 8 * i));
  };
  put(16, 40000), put(20, 40000);
  // of the header: its name, and 13 bytes
  put(29, checksum_of({reinterpret_cast<const std::uint8_t*>(png.data()) + 12, 17}));
  rewrite(prepared.tree.folder / "train/bee/sub/2.PNG", png);
  prepared.options.raw = true;
  prepared.options.max_pixels = 1'600'000'000;
  CHECK(fails(ExitCode::kUsage, "2.PNG: is 40000×40000 pixels, more than a record holds",
              [&] { prepared.make(); }));
}

TEST_CASE("shards: of three pictures that are drawn two lie, and the third stands") {
  const Folder folder;
  write_example_tree({.destination = folder / "drawn",
                      .classes = 1,
                      .train = 3,
                      .val = 1,
                      .width = 24,
                      .height = 16},
                     {});
  const PictureIndex index(folder / "drawn/train");
  PictureDecoder decoder;
  for (std::int64_t i = 0; i < 3; ++i) {
    const PictureSize size = decoder.size(read_picture_file(index.path(i)), "");
    CHECK(size.height == (i == 2 ? 24 : 16));
    CHECK(size.width == (i == 2 ? 16 : 24));
  }
}

TEST_CASE("shards: an interrupted call goes on with what is not yet written") {
  PreparedTree prepared;
  prepared.make();
  const auto whole = prepared.files();
  for (const std::int64_t after : {1, 2, 3, 6}) {
    fs::remove_all(prepared.options.destination);
    PrepareWatch watch;
    std::int64_t done = 0;
    watch.goes_on = [&](std::int64_t pictures) { done = pictures; };
    watch.stop = [&] { return done == after; };
    const PrepareReport report = prepared.make(watch);
    CHECK(report.stopped);
    CHECK(report.pictures == after);
    // nothing half-written
    for (const auto& [name, text] : prepared.files()) CHECK(text == whole.at(name));
    CHECK(!has_shard_index(prepared.options.destination));
    CHECK(contains(prepared.refusal(), "has brought to its end"));
    // of a call that was killed
    write_bytes(prepared.file("train-00002.shard.0a1b2c3d.tmp"), Bytes(100));
    prepared.options.threads = 3;
    std::int64_t before = -1;
    watch = {};
    watch.begins = [&](std::int64_t, std::int64_t there) { before = there; };
    CHECK(prepared.make(watch).made == 4 - static_cast<std::int64_t>(report.made));
    CHECK(before == (after == 6 ? 5 : after / 2 * 2));
    CHECK(prepared.files() == whole);
  }
  // A file that was lost is made again; a call with nothing to do changes nothing.
  fs::remove(prepared.file("train-00001.shard"));
  CHECK(contains(prepared.refusal(), "cannot open " + prepared.file("train-00001.shard")));
  REQUIRE(faults_of(prepared.options.destination).size() == 1);
  CHECK(prepared.make().made == 1);
  CHECK(prepared.make().made == 0);
  CHECK(prepared.files() == whole);
}

TEST_CASE("shards: what was made otherwise, and folders that hold something else, are left alone") {
  PreparedTree prepared;
  prepared.make();
  const auto whole = prepared.files();
  const auto refused = [&](const std::string& part) {
    CHECK(fails(ExitCode::kUsage, part, [&] { prepared.make(); }));
    CHECK(prepared.files() == whole);
  };
  prepared.options.size = 20;
  refused(
      "was made with --shard-pictures 2 --max-pixels 200000000, and now it is --size 20 --quality "
      "90 --interpolation bilinear");
  prepared.options.size = 0;
  fs::remove(prepared.file("shards.index"));
  prepared.options.shard_pictures = 3;
  CHECK(fails(ExitCode::kUsage, "train-00000.shard was made with", [&] { prepared.make(); }));
  prepared.options.shard_pictures = 2;
  std::string other = whole.at("train-00000.shard");
  ShardFooter footer;
  std::memcpy(&footer, other.data() + other.size() - sizeof footer, sizeof footer);
  other[(footer.table_at + 7) / 8 * 8 + offsetof(ShardEntry, label)] = 9;
  mend_checksums(other);
  rewrite(prepared.file("train-00000.shard"), other);
  CHECK(fails(ExitCode::kUsage, "is of a class that there is not", [&] { prepared.make(); }));
  rewrite(prepared.file("train-00000.shard"), whole.at("train-00000.shard"));
  prepared.make();
  prepared.tree.add("train/bee/more.jpg", "420.jpg");
  refused("was made of other pictures than the source holds now");
  fs::remove(prepared.tree.folder / "train/bee/more.jpg");
  fs::rename(prepared.file("train-00000.shard"), prepared.file("train-00001.shard"));
  CHECK(
      fails(ExitCode::kUsage, "is another shard by its footer, renamed", [&] { prepared.make(); }));
  CHECK(fails(ExitCode::kUsage, "cannot open", [&] { prepared.open(); }));
  prepared.options.destination = prepared.tree.folder / "val";
  CHECK(
      fails(ExitCode::kUsage, "is not empty and holds no shards, but ", [&] { prepared.make(); }));
  prepared.options.destination = prepared.tree.folder / "train/ant/a.jpg";
  CHECK(fails(ExitCode::kOutput, "cannot be made", [&] { prepared.make(); }));
  prepared.options.source = prepared.tree.folder / "nowhere";
  CHECK(fails(ExitCode::kUsage, "/train has no class folders; needed:", [&] { prepared.make(); }));
}

TEST_CASE("shards: bad pictures are named, or left out") {
  PreparedTree prepared;
  const std::string bad =
      prepared.tree.folder.write("train/ant/b.jpeg", "\xff\xd8\xff\xe0 no more");
  for (const int threads : {1, 3}) {
    prepared.options.threads = threads;
    CHECK(error_of(ExitCode::kUsage, [&] {
            prepared.make();
          }).starts_with("[picture] " + bad + ": cannot be decoded as JPEG"));
  }
  prepared.options.skip_bad = true;
  std::vector<std::string> named;
  PrepareWatch watch;
  watch.bad = [&](const Error& error) { named.emplace_back(error.what()); };
  const PrepareReport report = prepared.make(watch);
  CHECK(report.skipped == 1);
  CHECK(report.pictures == 6);
  REQUIRE(named.size() == 1);
  CHECK(contains(named[0], bad));
  const auto shards = prepared.open();
  CHECK(shards->info().train_samples == 4);
  CHECK(shards->label(ShardSplit::kTrain, 1) == 0);
  CHECK(shards->label(ShardSplit::kTrain, 2) == 1);
  CHECK(read_image(*shards, ShardSplit::kTrain, 1) ==
        read_image(*prepared.tree.open(), ShardSplit::kTrain, 2));
  for (const char* name : {"1.jpg", "sub/2.PNG"})
    prepared.tree.folder.write(std::string("train/bee/") + name, "x");
  prepared.options.destination += "-none";
  CHECK(fails(ExitCode::kUsage,
              "no picture of " + prepared.options.source + "/train/bee can be decoded",
              [&] { prepared.make(); }));
}

TEST_CASE(
    "shards: a part of train/ is set aside where there is no val/, and the folder need not be "
    "there for a dry run") {
  PreparedTree prepared;
  fs::remove_all(prepared.tree.folder / "val");
  CHECK(prepared.make().pictures == 5);
  CHECK(contains(prepared.refusal(), "\"val_fraction\": 0.1"));
  const auto folder = prepared.tree.open({{"val_fraction", 0.5}}),
             shards = prepared.open({{"val_fraction", 0.5}});
  REQUIRE(shards->info().test_samples == 3);  // 1.5 of 3 and 1 of 2, by name
  for (std::int64_t i = 0; i < 3; ++i)
    CHECK(read_image(*shards, ShardSplit::kTest, i) == read_image(*folder, ShardSplit::kTest, i));
  const auto declared = make_dataset({{"type", "shards"},
                                      {"path", prepared.tree.folder / "nowhere"},
                                      {"classes", 12},
                                      {"test_samples", 3}});
  CHECK(declared->info().classes == 12);
  CHECK(declared->info().test_samples == 3);
  CHECK(fails(ExitCode::kUsage, "there is no " + prepared.tree.folder.path() + "/nowhere; needed: ",
              [&] { declared->open(); }));
}

TEST_CASE("shards: a byte that is flipped is found wherever it lies, and its record named") {
  PreparedTree prepared;
  prepared.options.shard_pictures = 3;
  prepared.make();
  const auto whole = prepared.files();
  for (const auto& [name, text] : whole) {
    std::vector<std::string> titles(text.size());
    if (name.ends_with(".shard")) {
      const ShardFile file(prepared.file(name));
      for (std::int64_t i = 0; i < file.records(); ++i) {
        const ShardEntry& entry = file.entry(i);
        std::fill_n(titles.begin() + static_cast<std::ptrdiff_t>(entry.at), entry.bytes,
                    ": record " + std::to_string(i) + " (" + file.name(i) + ")");
      }
    }
    const std::size_t step = text.size() > 1000 ? 7 : 1;
    for (std::size_t at = 0; at < text.size(); at += at + 400 < text.size() && at > 24 ? step : 1) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      rewrite(prepared.file(name), damaged);
      CAPTURE(name);
      CAPTURE(at);
      const std::vector<std::string> faults = faults_of(prepared.options.destination);
      REQUIRE(faults.size() == 1);
      CHECK(contains(faults[0], prepared.file(name) + titles[at]));
      const std::string told =
          error_of(ExitCode::kUsage, [&] { read_everything(*prepared.open()); });
      CHECK(contains(told, prepared.file(name) + titles[at]));
    }
    rewrite(prepared.file(name), text);
  }
  // With on_bad_image the next of its class stands in.
  std::string damaged = whole.at("train-00000.shard");
  damaged[100] = static_cast<char>(damaged[100] ^ 1);
  rewrite(prepared.file("train-00000.shard"), damaged);
  const auto patient = prepared.open({{"on_bad_image", "skip"}});
  CHECK(read_image(*patient, ShardSplit::kTrain, 0) == read_image(*patient, ShardSplit::kTrain, 1));
}

TEST_CASE("shards: files that are cut off, of another version, foreign or exchanged are named") {
  PreparedTree prepared;
  prepared.make();
  const auto whole = prepared.files();
  const auto put = [&](const std::string& name, const std::string& text) {
    rewrite(prepared.file(name), text);
  };
  for (const auto& [name, text] : whole) {
    for (std::size_t length = 0; length < text.size();
         length += length + 100 < text.size() && length > 100 ? 97 : 1) {
      put(name, text.substr(0, length));
      CAPTURE(name);
      CAPTURE(length);
      CHECK(contains(prepared.refusal(), prepared.file(name)));
      CHECK(faults_of(prepared.options.destination).size() == 1);
    }
    put(name, text + "x");
    CHECK(contains(prepared.refusal(), prepared.file(name)));
    std::string newer = text;
    newer[8] = 2;
    put(name, newer);
    CHECK(contains(prepared.refusal(),
                   prepared.file(name) + " is of version 2, this program reads version 1"));
    put(name, read_text(prepared.tree.folder / "train/bee/1.jpg"));
    CHECK(contains(
        prepared.refusal(),
        prepared.file(name) + (name == "shards.index" ? " is no index of shards"
                                                      : " is no shard by its first bytes")));
    put(name, text);
  }
  put("train-00000.shard", whole.at("train-00001.shard"));
  CHECK(contains(prepared.refusal(), "is not the shard that the index beside it means"));
  put("train-00000.shard", whole.at("train-00000.shard"));
  // Of another preparation.
  prepared.options.max_pixels = 1 << 20;
  prepared.options.destination += "-other";
  prepared.make();
  fs::copy_file(prepared.tree.folder / "shards/train-00000.shard",
                prepared.file("train-00000.shard"), fs::copy_options::overwrite_existing);
  CHECK(contains(prepared.refusal(), "but one of another preparation"));
}

TEST_CASE("shards: a file that is shortened while it is open is named") {
  const PreparedTree prepared;
  prepared.make();
  const auto shards = prepared.open();
  (void)read_image(*shards, ShardSplit::kTrain, 0);
  fs::resize_file(prepared.file("train-00000.shard"), 0);
  for (const std::int64_t sample : {0, 1}) {
    const std::string text =
        error_of(ExitCode::kUsage, [&] { (void)read_image(*shards, ShardSplit::kTrain, sample); });
    CHECK(contains(text, prepared.file("train-00000.shard")));
    CHECK(contains(text, "the file was shortened, or its disk is failing"));
  }
  (void)read_image(*shards, ShardSplit::kTrain, 2);
}
