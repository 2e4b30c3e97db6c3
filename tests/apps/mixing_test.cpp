// Batches whose images are mixed with their neighbours', and their targets with them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "core/autograd.h"
#include "kernels/cpu/cpu_backend.h"
#include "layers/functions.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/epoch_samples.h"

namespace starling::mixing_tests {

using test::contains;

constexpr std::int64_t kBatch = 8, kClasses = 10;
const Shape kImage{6, 5, 3};

Augmenters augmenters(const nlohmann::json& keys) { return test::augmenters_from(keys, kImage); }

LoaderSettings settings(const nlohmann::json& keys, int rank = 0, int ranks = 1) {
  LoaderSettings result{
      .seed = 5, .augment = augmenters(keys), .batch_size = kBatch, .rank = rank, .ranks = ranks};
  if (!mixing_key(result.augment).empty()) result.soft_target = {"label", kClasses};
  return result;
}

struct Seen {
  std::vector<float> images, shares;
  friend bool operator==(const Seen&, const Seen&) = default;
};
Seen copy_of_mixed(const Batch& batch) {
  const auto images = batch["image"].span<float>(), shares = batch["label"].span<float>();
  return {{images.begin(), images.end()}, {shares.begin(), shares.end()}};
}

TEST_CASE("apps/mixing: images and targets are mixed with their neighbours' by the same share") {
  const test::NumberedDataset dataset(64, 1);
  test::MemoryBackend backend;
  const nlohmann::json window{{"crop_padding", 1}, {"flip", true}, {"cutout", 2}};
  for (const char* key : {"mixup", "cutmix"}) {
    CAPTURE(key);
    nlohmann::json keys = window;
    keys[key] = 0.8;
    Loader plain(dataset, settings(window), backend, DType::kFloat32),
        mixed(dataset, settings(keys), backend, DType::kFloat32);
    const auto order = epoch_samples(64, settings(window), 0);
    std::set<float> shares;
    for (std::int64_t b = 0; b < plain.batches_per_epoch(); ++b) {
      const Batch& before = plain.next();
      const auto images = before["image"].span<float>();
      const auto labels = before["label"].span<std::int32_t>();
      const Seen after = copy_of_mixed(mixed.next());
      REQUIRE(after.shares.size() == kBatch * kClasses);
      const BatchMix mix = ImageChange(settings(keys).augment, 5, 0)
                               .mix(order[static_cast<std::size_t>(b * kBatch)], kImage);
      std::int64_t own_pixels = 0;
      for (std::int64_t i = 0; i < kBatch; ++i) {
        const std::int64_t other = (i + kBatch - 1) % kBatch;
        for (std::int64_t k = 0; k < 90; ++k) {
          const float a = images[static_cast<std::size_t>(i * 90 + k)],
                      c = images[static_cast<std::size_t>(other * 90 + k)];
          const std::int64_t y = k / 15, x = k % 15 / 3;
          const bool inside = y >= mix.top && y < mix.bottom && x >= mix.left && x < mix.right;
          const float share = inside ? 0.0F : static_cast<float>(mix.own) / 16777216.0F;
          REQUIRE(after.images[static_cast<std::size_t>(i * 90 + k)] ==
                  doctest::Approx(share * a + (1 - share) * c).epsilon(1e-5));
          if (i == 0 && k % 3 == 0) own_pixels += !inside;
        }
        // Exactly the share of its pixels, or of their weight.
        const float own = std::string(key) == "mixup"
                              ? static_cast<float>(mix.own) / 16777216.0F
                              : static_cast<float>(static_cast<double>(own_pixels) / 30.0);
        std::vector<float> expected(kClasses);
        expected[static_cast<std::size_t>(labels[static_cast<std::size_t>(i)])] += own;
        expected[static_cast<std::size_t>(labels[static_cast<std::size_t>(other)])] += 1.0F - own;
        for (std::int64_t c = 0; c < kClasses; ++c)
          REQUIRE(after.shares[static_cast<std::size_t>(i * kClasses + c)] ==
                  expected[static_cast<std::size_t>(c)]);
        shares.insert(own);
      }
    }
    CHECK(shares.size() > 4);  // a batch's own each
  }
}

TEST_CASE(
    "apps/mixing: the same bits with any number of threads, from any batch on, and on any rank") {
  const test::NumberedDataset dataset(96, 1);
  test::MemoryBackend backend;
  const nlohmann::json keys{{"crop_padding", 2},
                            {"padding_mode", "reflect"},
                            {"flip", "alternating"},
                            {"color_jitter", {{"brightness", 0.4}, {"hue", 0.2}}},
                            {"rand_augment", nlohmann::json::object()},
                            {"random_erasing", nlohmann::json::object()},
                            {"mixup", 0.4},
                            {"cutmix", 1.0}};
  std::vector<Seen> expected;
  Loader one(dataset, settings(keys, 1, 2), backend, DType::kFloat32);
  for (int b = 0; b < 12; ++b) expected.push_back(copy_of_mixed(one.next()));
  CHECK(expected[0] != expected[6]);
  LoaderSettings threaded = settings(keys, 1, 2);
  threaded.threads = 4;
  Loader many(dataset, threaded, backend, DType::kFloat32),
      resumed(dataset, settings(keys, 1, 2), backend, DType::kFloat32);
  resumed.start(1, 2);
  for (int b = 0; b < 12; ++b) {
    const Seen seen = copy_of_mixed(many.next());
    CHECK(seen == expected[static_cast<std::size_t>(b)]);
    if (b >= 8) CHECK(copy_of_mixed(resumed.next()) == seen);
  }

  // A batch is a function of its samples: here, without shuffling, another rank of another number
  // has the same.
  LoaderSettings alone = settings(keys), among = settings(keys, 0, 1);
  alone.shuffle = among.shuffle = false;
  const test::NumberedDataset twice(8, 1);
  Loader first(twice, alone, backend, DType::kFloat32),
      second(dataset, among, backend, DType::kFloat32);
  CHECK(copy_of_mixed(first.next()) == copy_of_mixed(second.next()));
}

TEST_CASE("apps/mixing: a device makes the host's bits of bytes, windows, rectangles and shares") {
  const test::NumberedDataset dataset(96, 1);
  test::MemoryBackend host, device(false);
  const nlohmann::json keys{{"crop_padding", 2}, {"flip", true},
                            {"cutout", 3},       {"random_erasing", {{"p", 0.7}, {"value", 0.5}}},
                            {"mixup", 0.4},      {"cutmix", 1.0}};
  const auto check = [&]<class T>(T) {
    Loader on_host(dataset, settings(keys), host, DTypeOf<T>::value),
        on_device(dataset, settings(keys), device, DTypeOf<T>::value);
    for (int b = 0; b < 12; ++b) {
      const Batch &expected = on_host.next(), &made = on_device.next();
      REQUIRE(std::ranges::equal(
          expected["image"].template span<T>(), made["image"].template span<T>(),
          [](T a, T c) { return static_cast<float>(a) == static_cast<float>(c); }));
      CHECK(std::ranges::equal(expected["label"].span<float>(), made["label"].span<float>()));
    }
  };
  check(float{});
  check(BFloat16{});
  CHECK(device.augmentations == 24);
}

TEST_CASE("apps/mixing: in low precision numbers are rounded once, after mixing") {
  const test::NumberedDataset dataset(32, 1);
  test::MemoryBackend backend;
  const nlohmann::json keys{{"crop_padding", 1}, {"mixup", 1.0}};
  Loader wide(dataset, settings(keys), backend, DType::kFloat32),
      low(dataset, settings(keys), backend, DType::kBFloat16);
  for (int b = 0; b < 4; ++b) {
    const auto exact = wide.next()["image"].span<float>();
    const auto rounded = low.next()["image"].span<BFloat16>();
    for (std::size_t i = 0; i < exact.size(); ++i)
      REQUIRE(static_cast<float>(rounded[i]) == static_cast<float>(BFloat16(exact[i])));
  }
}

// How much is drawn is drawn_augment_test.cpp's.
TEST_CASE(
    "apps/mixing: the least alpha takes an image or its neighbour, and of two ways each is taken "
    "by half of the batches") {
  const Augmenters least = augmenters({{"mixup", 1e-6}}),
                   both = augmenters({{"mixup", 0.8}, {"cutmix", 1.0}});
  int whole = 0, mixup = 0;
  for (std::int64_t sample = 0; sample < 2000; ++sample) {
    const double share = ImageChange(least, 3, 1).mix(sample, kImage).share(kImage);
    REQUIRE((share >= 0.0 && share <= 1.0));
    whole += share < 0.01 || share > 0.99;
    mixup += ImageChange(both, 3, 1).mix(sample, kImage).own < math::kWholeShare;
  }
  CHECK(whole > 1900);
  CHECK(mixup > 890);
  CHECK(mixup < 1110);
  CHECK(ImageChange(augmenters({{"flip", true}}), 3, 1).mix(0, kImage).own == math::kWholeShare);
}

TEST_CASE("apps/mixing: a config whose loss, task or batch cannot be mixed is refused by name") {
  register_builtins();
  static const bool once = [] {
    class Plain final : public Loss {
     public:
      Variable value(const Variable& outputs, const Tensor& targets, double scale,
                     Pass& pass) const override {
        return functions::cross_entropy(outputs, targets, 0.0, scale, pass);
      }
    };
    losses().add("test_plain", [](ConfigSection&) { return std::make_unique<Plain>(); });
    return true;
  }();
  static_cast<void>(once);
  const auto message = [](const char* patch) {
    nlohmann::json config =
        nlohmann::json::parse(R"({"model": {"type": "resnet20"}, "batch_size": 4, "steps": 1,
      "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 64, "test_limit": 8, "augment": {"mixup": 0.2}}})");
    config.merge_patch(nlohmann::json::parse(patch));
    return test::error_of(ExitCode::kUsage, [&] {
      trace_shapes(read_train_config(config, "test.json", {1, 1}));
    });
  };
  CHECK(contains(message(R"({"loss": {"type": "test_plain"}})"), "data.augment.mixup"));
  CHECK(contains(message(R"({"loss": {"type": "test_plain"}})"), "loss.type"));
  for (const char* loss : {"cross_entropy", "focal", "bce_with_logits", "mse", "l1", "huber"}) {
    CAPTURE(loss);
    nlohmann::json config = nlohmann::json::parse(
        R"({"model": {"type": "resnet20", "num_classes": 7}, "batch_size": 4, "steps": 1,
      "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 64, "test_limit": 8, "augment": {"mixup": 0.2, "cutmix": 1}}})");
    config["loss"] = {{"type", loss}};
    const TrainConfig read = read_train_config(config, "test.json", {1, 1});
    CHECK(read.task->tensors().back().shape == Shape{7});
    CHECK_NOTHROW(trace_shapes(read));
  }
}

}  // namespace starling::mixing_tests
