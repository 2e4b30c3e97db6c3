#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "apps/data/batch_maker.h"
#include "apps/data/image_dataset.h"
#include "apps/data/loss_shares.h"
#include "apps/inference/test_views.h"
#include "apps/training/config/plugins.h"
#include "core/error.h"
#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/staging.h"
#include "tests/apps/epoch_samples.h"
#include "tests/apps/picture_tree.h"
#include "tests/cuda/graph_job.h"
#include "tests/cuda/held_device.h"
#include "tests/cuda/race_training.h"
#include "tests/cuda/support.h"
#include "tests/fakes/cuda/noting_backend.h"
#include "tests/fakes/cuda/race_checker.h"
#include "tests/fakes/cuda/recorder.h"

// Batches go from the loader's thread to the device through page-locked memory that nobody copies,
// and that is written again only once the device has read it.
namespace starling::tests {
namespace {

using cuda::shim::Call;
using cuda::shim::CallKind;
using nlohmann::json;

std::unique_ptr<ImageDataset> synthetic() {
  register_builtins();
  TrainConfig config = read_train_config(graph_config(1), "test", {});
  config.data.dataset->open();
  return std::unique_ptr<ImageDataset>(
      &dynamic_cast<ImageDataset&>(*config.data.dataset.release()));
}

LoaderSettings settings_of_three() {
  return {.augment = read_train_config(graph_config(1), "test", {}).data.augment,
          .batch_size = 3,
          .fixed_place = true};
}

}  // namespace

TEST_CASE("cuda/loader: a batch is one copy, from the page-locked memory that the loader wrote") {
  const std::unique_ptr<ImageDataset> dataset = synthetic();
  cuda::CudaBackend backend(0, false, false, true);
  const auto maker = make_batch_maker(*dataset, {.batch_size = 3, .crop_padding = 1}, backend);
  BatchMaker::Slot slot = maker->make_slot();
  const std::vector<std::int64_t> samples = {5, 0, 7};
  maker->fill(slot, samples, {});
  const std::uint64_t copied = cuda::Staging::copied_bytes();
  int copies = 0;
  for (const Call& call : cuda::shim::recorded([&] { maker->send(slot); })) {
    if (call.kind != CallKind::kCopy) continue;
    ++copies;
    CHECK(call.from == slot.host.get());
    CHECK(call.to == slot.device.all.raw());
    CHECK(call.bytes == slot.device.all.bytes());
  }
  CHECK(copies == 1);
  CHECK(cuda::Staging::copied_bytes() == copied);
  const std::vector<std::int32_t> labels = host_copy<std::int32_t>(slot.batch["label"]);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(labels[i] == dataset->label(Dataset::Split::kTrain, samples[i]));
  std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset->images().image.elements()));
  const std::vector<std::uint8_t> bytes = host_copy<std::uint8_t>(slot.device.tensors[0]);
  dataset->image(Dataset::Split::kTrain, 7, image.data());
  CHECK(std::memcmp(bytes.data() + 2 * image.size(), image.data(), image.size()) == 0);
  maker->settle(slot);
}

TEST_CASE(
    "cuda/loader: colours, shapes and parts are the device's work, with the bits of the CPU's "
    "loader") {
  const std::unique_ptr<ImageDataset> dataset = synthetic();
  const json part{{"random_resized_crop", {{"scale", {0.2, 0.9}}}}},
      list{{"rand_augment", {{"n", 3}, {"magnitude", 20}}}};
  const json jitter{{"color_jitter",
                     {{"brightness", 0.5}, {"contrast", 0.5}, {"saturation", 0.5}, {"hue", 0.4}}}};
  for (json keys :
       {part, list, jitter,
        json{{"trivial_augment", true}, {"crop_padding", 2}, {"padding_mode", "reflect"}}}) {
    keys.update({{"flip", true}, {"random_erasing", {{"p", 0.5}}}, {"mixup", 0.3}});
    CAPTURE(keys.dump());
    ConfigSection section(keys, "test");
    LoaderSettings settings = settings_of_three();
    settings.augment = read_augmenters(section, dataset->images().image);
    for (const bool fixed_place : {false, true}) {
      settings.fixed_place = fixed_place;
      cuda::CudaBackend gpu(0, false, false, true);
      CpuBackend cpu;
      Loader on_device(*dataset, settings, gpu, DType::kFloat32),
          on_cpu(*dataset, settings, cpu, DType::kFloat32);
      cuda::shim::start_recording();
      for (int step = 0; step < 6; ++step) {
        const Tensor &expected = on_cpu.next()["image"], &found = on_device.next()["image"];
        CHECK(std::memcmp(host_copy(found).data(), expected.raw(), expected.bytes()) == 0);
      }
      CHECK(cuda::shim::launches(cuda::shim::stop_recording(), "ChangePixels") == 6);
    }
  }
}

namespace {

/// Bytes the other way round, by the host.
class Negative final : public Augmenter {
 public:
  void apply(const SampleRandom&, AugmentedImage& image) const override {
    for (std::uint8_t& byte : image.bytes()) byte = static_cast<std::uint8_t>(255 - byte);
  }
};

/// A batch's images, and how many of its pictures are left to the device.
struct PictureBatches {
  explicit PictureBatches(const Dataset& dataset, const Augmenters& augmenters, Backend& backend,
                          int threads)
      : augmenters_(augmenters),
        maker_(make_batch_maker(dataset,
                                {.batch_size = 5,
                                 .steps = steps_of(augmenters, true),
                                 .mix = !mixing_key(augmenters).empty(),
                                 .threads = threads},
                                backend)),
        slot_(maker_->make_slot()) {}
  ~PictureBatches() { maker_->settle(slot_); }
  std::vector<float> next(std::int64_t epoch) {
    const std::vector<std::int64_t> samples = {4, 0, 2, 1, 3};
    maker_->wait_until_writable(slot_);
    maker_->fill(slot_, samples, image_change(augmenters_, 3, epoch));
    maker_->send(slot_);
    maker_->make(slot_);
    maker_->release(slot_);
    std::vector<float> numbers = host_copy(slot_.batch["image"]);
    const auto& parts = slot_.device.more;
    if (!parts.empty() && parts[ImageCollate::kCuts]) {
      const auto* cuts = reinterpret_cast<const CutPicture*>(
          slot_.host.get() + (parts[ImageCollate::kCuts].raw() - slot_.device.all.raw()));
      for (int i = 0; i < 5; ++i) left += cuts[i].height != 16 || cuts[i].width != 16;
    }
    return numbers;
  }
  int left = 0;

 private:
  const Augmenters& augmenters_;
  std::unique_ptr<BatchMaker> maker_;
  BatchMaker::Slot slot_;
};

}  // namespace

TEST_CASE(
    "cuda/loader: crops of pictures are resized by the device, with the bits of the CPU's loader") {
  const test::PictureTree tree;
  const json crops{{"random_resized_crop", {{"scale", {0.05, 1.0}}}}};
  json changed = crops;
  changed.update(
      {{"color_jitter", {{"contrast", 0.5}, {"hue", 0.4}}}, {"flip", true}, {"mixup", 0.3}});
  for (const std::string interpolation : {"nearest", "bilinear", "bicubic"}) {
    for (const json& keys : {json::object(), crops, changed}) {
      for (const bool by_host : {false, true}) {
        CAPTURE(interpolation);
        CAPTURE(keys.dump());
        CAPTURE(by_host);
        const auto dataset = tree.open();
        dataset->set_interpolation(interpolation_of(interpolation));
        ConfigSection section(keys, "test");
        Augmenters augmenters = read_augmenters(section, dataset->images().image);
        if (by_host) augmenters.push_back(std::make_shared<Negative>());
        cuda::CudaBackend gpu(0, false, false, true);
        CpuBackend cpu;
        PictureBatches on_device(*dataset, augmenters, gpu, 1),
            on_cpu(*dataset, augmenters, cpu, 1), shared(*dataset, augmenters, gpu, 3);
        cuda::shim::start_recording();
        for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
          const std::vector<float> expected = on_cpu.next(epoch);
          CHECK(on_device.next(epoch) == expected);
          CHECK(shared.next(epoch) == expected);
        }
        CHECK(cuda::shim::launches(cuda::shim::stop_recording(), "ResizePictures") == 16);
        CHECK((by_host ? on_device.left == 0 : on_device.left > 10));
        // Pictures that are not decoded at a smaller scale do not all fit beside each other, so
        // that the host resizes some.
        if (interpolation == "nearest") CHECK(on_device.left < 40);
      }
    }
  }
}

TEST_CASE(
    "cuda/loader: of a batch of pictures no more crosses the bus than was taken, and a short batch "
    "is whole") {
  const test::PictureTree tree;
  const auto dataset = tree.open();
  cuda::CudaBackend backend(0, false, false, true);
  CpuBackend cpu;
  for (const bool fixed_place : {false, true}) {
    const auto maker =
        make_batch_maker(*dataset, {.batch_size = 5, .fixed_place = fixed_place}, backend);
    const auto expected_maker = make_batch_maker(*dataset, {.batch_size = 5}, cpu);
    BatchMaker::Slot slot = maker->make_slot(), expected = expected_maker->make_slot();
    const std::vector<std::int64_t> samples = {3, 1};
    maker->fill(slot, samples, {});
    expected_maker->fill(expected, samples, {});
    CHECK(slot.bytes < slot.device.all.bytes());
    for (const Call& call : cuda::shim::recorded([&] { maker->send(slot); })) {
      if (call.kind == CallKind::kCopy) CHECK(call.bytes == slot.bytes);
    }
    maker->make(slot);
    CHECK(std::memcmp(host_copy(slot.batch["image"]).data(), expected.batch["image"].raw(),
                      2 * 16 * 16 * 3 * sizeof(float)) == 0);
    maker->settle(slot);
  }
}

TEST_CASE(
    "cuda/loader: views of test pictures are shifted and mirrored by the device, with the bits of "
    "the CPU's loader") {
  const test::PictureTree tree;
  const auto dataset = tree.open();
  cuda::CudaBackend gpu(0, false, false, true);
  CpuBackend cpu;
  EvaluationLoader on_device(*dataset, 2, 0, 1, gpu, DType::kFloat32, 1,
                             test_views("mirror_translate"));
  EvaluationLoader on_cpu(*dataset, 2, 0, 1, cpu, DType::kFloat32, 1,
                          test_views("mirror_translate"));
  REQUIRE(on_device.next() != nullptr);
  REQUIRE(on_cpu.next() != nullptr);
  cuda::shim::start_recording();
  for (std::size_t view = 0; view < on_cpu.views().size(); ++view) {
    const Tensor &expected = on_cpu.shown(view)["image"], &found = on_device.shown(view)["image"];
    CHECK(std::memcmp(host_copy(found).data(), expected.raw(), expected.bytes()) == 0);
  }
  const std::vector<Call> calls = cuda::shim::stop_recording();
  CHECK(cuda::shim::launches(calls, "ChangePixels") == 6);
  CHECK(cuda::shim::launches(calls, "ResizePictures") == 6);
}

TEST_CASE(
    "cuda/loader: the loader's thread waits for a device that lags behind, and the race checker "
    "finds nothing") {
  const std::unique_ptr<ImageDataset> dataset = synthetic();
  cuda::shim::start_recording(true);
  {
    cuda::CudaBackend gpu(0, false, false, true);
    cuda::shim::NotingBackend backend(gpu);
    Loader loader(*dataset, settings_of_three(), backend, DType::kFloat32);
    {
      const LaggingDevice device;
      for (int step = 0; step < 12; ++step) {
        loader.advance();
        loader.make();
        loader.upload_ahead();
      }
    }
    backend.synchronize();
  }
  CHECK(lines(cuda::shim::check_races(cuda::shim::stop_recording())) == "");
}

TEST_CASE("cuda/loader: a micro-batch's share of the loss comes with it, where a graph reads it") {
  const std::unique_ptr<ImageDataset> dataset = synthetic();
  cuda::CudaBackend backend(0, false, false, true);
  const std::int64_t samples = dataset->info().train_samples;
  std::vector<std::int32_t> counted;
  for (std::int64_t k = 0; k < samples; ++k)
    counted.push_back(static_cast<std::int32_t>(k * k % 5));
  LoaderSettings settings = settings_of_three();
  settings.loss_shares =
      std::make_shared<LossShares>(counted, settings.batch_size, 2, RankLayout(), nullptr);
  const std::vector<std::int64_t> order = epoch_samples(samples, settings, 0);
  Loader loader(*dataset, settings, backend, DType::kFloat32);
  loader.start(0, 0);
  const auto count = [&](std::size_t batch) {
    double sum = 0.0;
    for (std::size_t k = 3 * batch; k < 3 * batch + 3; ++k)
      sum += counted[static_cast<std::size_t>(order[k])];
    return sum;
  };
  const std::byte* place = nullptr;
  for (std::size_t batch = 0; batch < 4; ++batch) {
    const Tensor share = loader.next()[LossShares::kTensor];
    CHECK((place == nullptr || share.raw() == place));
    place = share.raw();
    const std::size_t first = batch / 2 * 2;
    for (const double one : host_copy<double>(share))
      CHECK(one == count(batch) / (count(first) + count(first + 1)));
  }
}

TEST_CASE("cuda/loader: a loader can be ended while its thread waits for the device") {
  const std::unique_ptr<ImageDataset> dataset = synthetic();
  cuda::CudaBackend backend(0, false, false, true);
  auto loader = std::make_unique<Loader>(*dataset, settings_of_three(), backend, DType::kFloat32);
  const HeldDevice held;
  for (int step = 0; step < 3; ++step) {
    loader->next();
    loader->upload_ahead();
  }
  std::thread device([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cuda::shim::hold_events(false);
  });
  const auto begin = std::chrono::steady_clock::now();
  loader.reset();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  device.join();
}

}  // namespace starling::tests
