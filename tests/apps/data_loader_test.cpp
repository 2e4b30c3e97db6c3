#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "apps/data/loader.h"
#include "apps/data/partition.h"
#include "core/philox.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/epoch_samples.h"

using namespace starling;
using namespace starling::test;
using Split = Dataset::Split;

namespace {

/// Semantics section 9 once more, written down plainly: Fisher-Yates from the top with Philox(key =
/// seed, counter = (stream 2, epoch, index)).
std::vector<std::int64_t> plain_order(std::int64_t n, std::uint64_t seed, std::uint32_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (std::int64_t i = n - 1; i > 0; --i) {
    const Philox4x32 bits =
        philox(seed, static_cast<std::uint64_t>(i), (std::uint64_t{2} << 32) + epoch);
    const std::uint64_t number = bits.v[0] + (std::uint64_t{bits.v[1]} << 32);
    const auto j =
        static_cast<std::size_t>(static_cast<long double>(number) *
                                 static_cast<long double>(i + 1) / 18446744073709551616.0L);
    std::swap(order[static_cast<std::size_t>(i)], order[j]);
  }
  return order;
}

/// One training image as semantics.md says it, pixel by pixel: pad with 0, take the window, mirror,
/// normalise.
template <class T>
std::vector<T> plain_image(const ImageDataset& dataset, Split split, std::int64_t sample,
                           std::int64_t padding, const Augmentation& how) {
  const ImageInfo info = dataset.images();
  const std::int64_t height = info.image[0], width = info.image[1], channels = info.image[2];
  Bytes raw(static_cast<std::size_t>(info.image.elements()));
  dataset.image(split, sample, raw.data());
  std::vector<T> out;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t from_y = y + how.offset_y - padding,
                           from_x = (how.flip ? width - 1 - x : x) + how.offset_x - padding;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        const T value =
            inside ? static_cast<T>(
                         raw[static_cast<std::size_t>((from_y * width + from_x) * channels + c)])
                   : T(0);
        const auto k = static_cast<std::size_t>(c);
        out.push_back((value / T(255) - static_cast<T>(info.mean[k])) /
                      static_cast<T>(info.std[k]));
      }
    }
  }
  return out;
}

struct Seen {
  std::vector<std::int32_t> labels;
  std::vector<float> images;
  friend bool operator==(const Seen&, const Seen&) = default;
};
Seen copy_of(const Batch& batch) {
  const auto labels = batch["label"].span<std::int32_t>();
  const auto images = batch["image"].span<float>();
  return {{labels.begin(), labels.end()}, {images.begin(), images.end()}};
}

LoaderSettings settings_of(std::int64_t batch_size, int rank, int ranks, bool augment = true) {
  return {.seed = 42,
          .augment = augment ? augmenters_of(2, true) : Augmenters(),
          .batch_size = batch_size,
          .rank = rank,
          .ranks = ranks};
}

}  // namespace

TEST_CASE("apps/loader: an epoch's order is that of semantics.md, dealt to ranks in turn") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::int64_t epoch : {0, 1, 7}) {
      const auto order = plain_order(103, 42, static_cast<std::uint32_t>(epoch));
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::int64_t> expected;
        for (int k = 0; k < 103 / ranks; ++k)
          expected.push_back(order[static_cast<std::size_t>(rank + k * ranks)]);
        CHECK(epoch_samples(103, settings_of(4, rank, ranks), epoch) == expected);
      }
    }
  }
  LoaderSettings plain = settings_of(4, 1, 3);
  plain.shuffle = false;
  CHECK(epoch_samples(11, plain, 5) == std::vector<std::int64_t>{1, 4, 7});
}

TEST_CASE("apps/data: images grow on a line, rounded as numpy rounds FFCV's") {
  const auto sides = [](const ImageGrowth& growth, std::int64_t epochs) {
    std::vector<std::int64_t> result;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) result.push_back(growth.side(epoch));
    return result;
  };
  const ImageGrowth growth{
      .from = 128, .to = 224, .start_epoch = 0, .end_epoch = 10, .multiple = 32};
  CHECK(sides(growth, 12) ==
        std::vector<std::int64_t>{128, 128, 160, 160, 160, 192, 192, 192, 192, 224, 224, 224});
  CHECK(growth.sides() == std::vector<std::int64_t>{128, 160, 192, 224});
  CHECK(sides({160, 192, 11, 13, 32}, 15) == std::vector<std::int64_t>{160, 160, 160, 160, 160, 160,
                                                                       160, 160, 160, 160, 160, 160,
                                                                       192, 192, 192});
  // never beyond the ends
  CHECK(sides({100, 120, 0, 4, 64}, 6) == std::vector<std::int64_t>{100, 120, 120, 120, 120, 120});
}

TEST_CASE(
    "apps/loader: batches hold the right samples, cropped, flipped and normalised, in fp32 and "
    "fp64") {
  // Images and how far crops reach beyond them.
  const std::vector<std::pair<Shape, std::int64_t>> images{
      {Shape{6, 5, 3}, 2}, {Shape{4, 7, 1}, 2}, {Shape{3, 3, 2}, 2},
      {Shape{3, 4, 4}, 2}, {Shape{2, 2, 3}, 9}, {Shape{80, 90, 3}, 4}};
  for (const auto& [image, padding] : images) {
    const NumberedDataset dataset(47, 5, image);
    MemoryBackend backend;
    LoaderSettings settings = settings_of(5, 1, 2);
    settings.augment = augmenters_of(padding, true);
    settings.threads = 2;
    Loader loader(dataset, settings, backend, DType::kFloat32);
    Loader wide(dataset, settings, backend, DType::kFloat64);
    REQUIRE(loader.batches_per_epoch() == 4);
    bool same = true, flipped = false, moved = false;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto samples = epoch_samples(47, settings, epoch);
      for (std::size_t b = 0; b < 4; ++b) {
        const Batch& batch = loader.next();
        const Batch& wide_batch = wide.next();
        REQUIRE(batch.samples == 5);
        CHECK(batch["image"].shape() == image.with_batch(5));
        for (std::size_t i = 0; i < 5; ++i) {
          const std::int64_t sample = samples[b * 5 + i];
          const Augmentation how = augmentation_of(42, epoch, sample, padding, true);
          flipped = flipped || how.flip;
          moved = moved || how.offset_x != padding;
          same = same &&
                 batch["label"].span<std::int32_t>()[i] == dataset.label(Split::kTrain, sample);
          const auto expected = plain_image<float>(dataset, Split::kTrain, sample, padding, how);
          const auto expected_wide =
              plain_image<double>(dataset, Split::kTrain, sample, padding, how);
          same = same && std::equal(expected.begin(), expected.end(),
                                    batch["image"].data<float>() + i * expected.size());
          same = same && std::equal(expected_wide.begin(), expected_wide.end(),
                                    wide_batch["image"].data<double>() + i * expected.size());
        }
      }
    }
    CHECK(same);
    CHECK(flipped);
    CHECK(moved);
  }
}

TEST_CASE("apps/loader: colours are changed of small and of large images, by several threads") {
  for (const Shape& image : {Shape{6, 5, 3}, Shape{80, 90, 3}}) {
    CAPTURE(image.text());
    const NumberedDataset dataset(24, 1, image);
    const ImageInfo info = dataset.images();
    MemoryBackend backend;
    LoaderSettings settings = settings_of(4, 0, 1);
    settings.augment = augmenters_from(
        {{"color_jitter", {{"contrast", 0.8}, {"hue", 0.4}}}, {"random_erasing", {{"p", 0.5}}}},
        image);
    settings.threads = 3;
    Loader loader(dataset, settings, backend, DType::kFloat32);
    const auto samples = epoch_samples(24, settings, 0);
    const ImageChange change = image_change(settings.augment, settings.seed, 0);
    for (std::size_t k = 0; k < 24; ++k) {
      if (k % 4 == 0) loader.next();
      Bytes bytes(static_cast<std::size_t>(image.elements()));
      dataset.image(Split::kTrain, samples[k], bytes.data());
      std::vector<ErasedBox> box(1);
      change(samples[k], bytes, image, false, box);
      bool same = true;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        const auto pixel = static_cast<std::int64_t>(i / 3), y = pixel / image[1],
                   x = pixel % image[1];
        const bool erased =
            y >= box[0].top && y < box[0].bottom && x >= box[0].left && x < box[0].right;
        const float plain = (bytes[i] / 255.0F - static_cast<float>(info.mean[i % 3])) /
                            static_cast<float>(info.std[i % 3]);
        same &= loader.make()["image"].data<float>()[k % 4 * bytes.size() + i] ==
                (erased ? 0.0F : plain);
      }
      CHECK(same);
    }
  }
}

TEST_CASE("apps/loader: a sample that comes again in an epoch looks otherwise, by its place") {
  register_builtin_samplers();
  const NumberedDataset dataset(24, 1);
  MemoryBackend backend;
  const nlohmann::json none = nlohmann::json::object();
  ConfigSection section(none, "test.json");
  const std::shared_ptr<Sampler> sampler = samplers().make("class_balanced", "", section);
  std::vector<std::int32_t> classes(24, 1);
  classes[5] = 0;  // in half of all places
  sampler->set_classes(classes);
  std::map<std::int64_t, std::set<std::vector<float>>> looks;
  for (const int rank : {0, 1}) {
    LoaderSettings settings = settings_of(4, rank, 2);
    settings.augment = augmenters_of(2, true);
    settings.sampler = sampler;
    Loader loader(dataset, settings, backend, DType::kFloat32);
    loader.start(1, 1);
    const auto samples = epoch_samples(24, settings, 1);
    for (std::int64_t k = 4; k < 12; ++k) {
      if (k % 4 == 0) loader.next();
      const std::int64_t sample = samples[static_cast<std::size_t>(k)];
      const auto expected = plain_image<float>(dataset, Split::kTrain, sample, 2,
                                               augmentation_of(42, 1, rank + 2 * k, 2, true));
      const float* first = loader.make()["image"].data<float>() + k % 4 * 90;
      CHECK(std::equal(expected.begin(), expected.end(), first));
      looks[sample].emplace(expected.begin(), expected.end());
    }
  }
  CHECK(looks[5].size() > 3);
}

TEST_CASE("apps/loader: crops and flips use their whole range evenly") {
  std::map<std::int32_t, int> y, x, flip;
  for (std::int64_t sample = 0; sample < 9000; ++sample) {
    const Augmentation how = augmentation_of(3, 2, sample, 4, true);
    ++y[how.offset_y];
    ++x[how.offset_x];
    ++flip[how.flip];
  }
  CHECK(y.size() == 9);
  CHECK(x.size() == 9);
  CHECK(flip.size() == 2);
  CHECK(y.begin()->first == 0);
  CHECK(y.rbegin()->first == 8);
  for (const auto& counts : {y, x}) {
    for (const auto& [value, count] : counts) CHECK(std::abs(count - 1000) < 150);
  }
  CHECK(std::abs(flip[0] - 4500) < 250);
  CHECK(augmentation_of(3, 2, 5, 0, false).flip == 0);
  // What one of the two does never depends on the other being asked for.
  CHECK(augmentation_of(3, 2, 5, 4, false).offset_x == augmentation_of(3, 2, 5, 4, true).offset_x);
}

TEST_CASE("apps/loader: starting anywhere gives the batches of a run from the start") {
  const NumberedDataset dataset(50, 1);
  MemoryBackend backend;
  const LoaderSettings settings = settings_of(3, 0, 2);
  std::vector<Seen> all;
  {
    Loader loader(dataset, settings, backend, DType::kFloat32);
    REQUIRE(loader.batches_per_epoch() == 8);
    for (int i = 0; i < 32; ++i) all.push_back(copy_of(loader.next()));
  }
  Loader loader(dataset, settings, backend, DType::kFloat32);
  for (const auto& [epoch, batch] : {std::pair{0, 5}, {2, 0}, {1, 7}, {0, 0}, {2, 8}, {1, 3}}) {
    loader.start(epoch, batch);
    for (std::size_t i = static_cast<std::size_t>(epoch * 8 + batch);
         i < std::min<std::size_t>(32, static_cast<std::size_t>(epoch * 8 + batch) + 11); ++i) {
      CHECK(copy_of(loader.next()) == all[i]);
    }
  }
  // Leaving out the rest of an epoch, from its middle and at its end.
  loader.start(0, 0);
  CHECK(copy_of(loader.next()) == all[0]);
  loader.skip_to_epoch(1);
  for (std::size_t i = 8; i < 16; ++i) CHECK(copy_of(loader.next()) == all[i]);
  loader.skip_to_epoch(2);
  CHECK(copy_of(loader.next()) == all[16]);
  loader.skip_to_epoch(3);
  CHECK(copy_of(loader.next()) == all[24]);
}

TEST_CASE("apps/loader: memory for batches is taken once") {
  const NumberedDataset dataset(40, 1);
  MemoryBackend backend;
  Loader loader(dataset, settings_of(4, 0, 1), backend, DType::kFloat32);
  loader.next();
  const int before = backend.allocations;
  for (int i = 0; i < 50; ++i) loader.next();
  CHECK(backend.allocations == before);
}

TEST_CASE(
    "apps/loader: a device with memory of its own gets bytes, and makes the same bits, on the "
    "caller's thread") {
  const NumberedDataset dataset(40, 7);
  MemoryBackend host, device(false);
  const LoaderSettings settings = settings_of(4, 0, 1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Loader expected(dataset, settings, host, dtype), loader(dataset, settings, device, dtype);
    for (int i = 0; i < 15; ++i) {
      const Batch &found = loader.next(), &wanted = expected.next();
      for (const char* name : {"image", "label"})
        CHECK(std::memcmp(found[name].raw(), wanted[name].raw(), wanted[name].bytes()) == 0);
    }
  }
  CHECK(device.copies == 30);  // bytes, crops and flips, and labels in one
  CHECK(device.augmentations == 30);
  CHECK(host.augmentations == 0);
  EvaluationLoader evaluation(dataset, 4, 0, 1, device, DType::kFloat32),
      plain(dataset, 4, 0, 1, host, DType::kFloat32);
  for (int i = 0; i < 2; ++i) CHECK(copy_of(*evaluation.next()) == copy_of(*plain.next()));
}

TEST_CASE("apps/loader: errors of the thread come out of next(), after the good batches") {
  NumberedDataset dataset(20, 20);
  dataset.bad_sample = 13;
  MemoryBackend backend;
  LoaderSettings settings = settings_of(4, 0, 1);
  settings.shuffle = false;
  Loader loader(dataset, settings, backend, DType::kFloat32);
  for (int i = 0; i < 3; ++i) CHECK(loader.next().samples == 4);
  for (int i = 0; i < 2; ++i)
    CHECK(fails(ExitCode::kUsage, "training sample 13 has label 10", [&] { loader.next(); }));
  loader.start(0, 0);
  CHECK(loader.next().samples == 4);
  EvaluationLoader evaluation(dataset, 20, 0, 1, backend, DType::kFloat32);
  CHECK(fails(ExitCode::kUsage, "test sample 13", [&] { evaluation.next(); }));
  CHECK(fails(ExitCode::kUsage, "batch_size 7 × 3 ranks",
              [&] { Loader(dataset, settings_of(7, 0, 3), backend, DType::kFloat32); }));
}

TEST_CASE("apps/loader: can be destroyed at any moment") {
  const NumberedDataset dataset(64, 1);
  MemoryBackend backend;
  for (int i = 0; i < 60; ++i) {
    Loader loader(dataset, settings_of(2, 0, 1), backend, DType::kFloat32);
    if (i % 3 == 0) continue;  // never started
    loader.start(i, 0);
    if (i % 3 == 1) std::this_thread::sleep_for(std::chrono::microseconds(i * 7));
    for (int k = 0; k < i % 7; ++k) loader.next();
    if (i % 5 == 0) loader.start(1, 1);
  }
  CHECK(true);  // reached: nothing hung
}

TEST_CASE("apps/loader: evaluation takes every test sample exactly once for any number of ranks") {
  for (const std::int64_t samples : {1, 4, 23, 40}) {
    const NumberedDataset dataset(10, samples);
    MemoryBackend backend;
    for (const int ranks : {1, 2, 3, 5}) {
      std::map<std::vector<float>, int> seen;
      std::int64_t total = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EvaluationLoader loader(dataset, 4, rank, ranks, backend, DType::kFloat32);
        for (int round = 0; round < 2; ++round) {  // it starts over by itself
          while (const Batch* batch = loader.next()) {
            CHECK(batch->samples >= 1);
            CHECK(batch->samples <= 4);
            CHECK((*batch)["image"].shape()[0] == batch->samples);
            CHECK((*batch)["label"].elements() == batch->samples);
            for (std::int64_t i = 0; i < batch->samples && round == 0; ++i) {
              const float* first = (*batch)["image"].data<float>() + i * 90;
              ++seen[std::vector<float>(first, first + 90)];
              ++total;
            }
          }
        }
      }
      CHECK(total == samples);
      CHECK(static_cast<std::int64_t>(seen.size()) == samples);
      for (std::int64_t i = 0; i < samples; ++i)
        CHECK(seen[plain_image<float>(dataset, Split::kTest, i, 0, {})] == 1);
    }
  }
}

TEST_CASE("apps/loader: dirichlet shares are disjoint, of equal size, skewed and fixed") {
  const NumberedDataset dataset(1003, 1);
  const auto skew = [&](const std::vector<std::vector<std::int64_t>>& shares) {
    double largest = 0.0;  // mean over ranks of the part of the most frequent class
    for (const auto& share : shares) {
      std::map<std::int64_t, int> counts;
      for (const std::int64_t sample : share) ++counts[dataset.label(Split::kTrain, sample)];
      int most = 0;
      for (const auto& [label, count] : counts) most = std::max(most, count);
      largest += most / static_cast<double>(share.size()) / static_cast<double>(shares.size());
    }
    return largest;
  };
  std::vector<double> skews;
  for (const double alpha : {1e-300, 0.1, 1.0, 1e300}) {
    for (const int ranks : {1, 3, 8}) {
      const auto shares = dirichlet_shares(dataset, 9, alpha, ranks);
      CHECK(shares == dirichlet_shares(dataset, 9, alpha, ranks));
      std::set<std::int64_t> all;
      for (const auto& share : shares) {
        CHECK(static_cast<std::int64_t>(share.size()) == 1003 / ranks);
        all.insert(share.begin(), share.end());
      }
      CHECK(static_cast<int>(all.size()) == 1003 / ranks * ranks);
      if (ranks == 8) skews.push_back(skew(shares));
    }
  }
  CHECK(skews[1] > 0.3);
  CHECK(skews[3] < 0.2);
  CHECK(skews[0] > skews[2]);
  CHECK(dirichlet_shares(dataset, 9, 0.1, 4) != dirichlet_shares(dataset, 10, 0.1, 4));

  MemoryBackend backend;
  LoaderSettings settings = settings_of(25, 2, 8, false);
  settings.dirichlet_alpha = 0.1;
  Loader loader(dataset, settings, backend, DType::kFloat32);
  std::vector<std::multiset<std::int32_t>> epochs(2);
  std::vector<std::vector<std::int32_t>> orders(2);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    for (int b = 0; b < 5; ++b) {
      for (const std::int32_t label : loader.next()["label"].span<std::int32_t>()) {
        epochs[epoch].insert(label);
        orders[epoch].push_back(label);
      }
    }
  }
  CHECK(epochs[0] == epochs[1]);  // 125 of 125 samples each time, in another order
  CHECK(orders[0] != orders[1]);
}
