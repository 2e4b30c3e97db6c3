#include "apps/data/batch_maker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "apps/data/image_table.h"

namespace starling {
namespace {

/// A sample's label, checked against the classes.
std::int32_t label_of(const Dataset& dataset, Dataset::Split split, std::int64_t sample) {
  const std::int64_t label = dataset.label(split, sample), classes = dataset.info().classes;
  if (label < 0 || label >= classes) {
    fail(ExitCode::kUsage, "data", "{} sample {} has label {}, the classes are 0 to {}",
         split == Dataset::Split::kTrain ? "training" : "test", sample, label, classes - 1);
  }
  return static_cast<std::int32_t>(label);
}

/// The window in the middle of the padding: the image as it is.
Augmentation centred(std::int64_t padding) { return {static_cast<std::int32_t>(padding), static_cast<std::int32_t>(padding), 0}; }

template <class T>
class CpuBatchMaker final : public BatchMaker {
 public:
  CpuBatchMaker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend)
      : dataset_(dataset),
        info_(dataset.info()),
        batch_size_(batch_size),
        padding_(crop_padding),
        backend_(backend),
        table_(info_, crop_padding),
        raw_(static_cast<std::size_t>(info_.image.elements())) {}

  Slot make_slot() const override {
    Slot slot;
    slot.batch.images = Tensor(backend_, info_.image.with_batch(batch_size_), DTypeOf<T>::value);
    slot.batch.labels = Tensor(backend_, Shape{batch_size_}, DType::kInt32);
    return slot;
  }

  void fill(Slot& slot, Dataset::Split split, std::span<const std::int64_t> samples,
            const std::function<Augmentation(std::int64_t)>& augment) override {
    T* images = slot.batch.images.template data<T>();
    std::int32_t* labels = slot.batch.labels.template data<std::int32_t>();
    for (const std::int64_t sample : samples) {
      *labels++ = label_of(dataset_, split, sample);
      dataset_.image(split, sample, raw_.data());
      table_.write(raw_.data(), augment ? augment(sample) : centred(padding_), images);
      images += raw_.size();
    }
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
  }

  void upload(Slot&) const override {}
  void send(Slot&) const override {}
  void make(Slot&) const override {}
  void release(Slot&) const override {}
  void settle(Slot&) const override {}

 private:
  const Dataset& dataset_;
  DatasetInfo info_;
  std::int64_t batch_size_, padding_;
  Backend& backend_;
  ImageTable<T> table_;
  std::vector<std::uint8_t> raw_;  ///< one image as the data set gives it
};

/// The device crops, flips, normalises and casts; a byte a number crosses the bus.
class DeviceBatchMaker final : public BatchMaker {
 public:
  DeviceBatchMaker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend, DType dtype,
                   bool fixed_place)
      : dataset_(dataset), info_(dataset.info()), batch_size_(batch_size), padding_(crop_padding), backend_(backend), dtype_(dtype) {
    if (!fixed_place) return;
    fixed_ = make_raw();
    fixed_images_ = Tensor(backend_, images_shape(), dtype_);
  }

  Slot make_slot() const override {
    Slot slot;
    slot.device = make_raw();
    slot.batch.images = fixed_images_ ? fixed_images_ : Tensor(backend_, images_shape(), dtype_);
    slot.batch.labels = place_of(slot).labels;
    const std::size_t all = slot.device.all.bytes();
    slot.host = backend_.allocate_host(all);
    std::memset(slot.host.get(), 0, all);  // the gaps between the parts, and what a short batch leaves, are copied too
    const auto part = [&](const Tensor& tensor) { return slot.host.get() + (tensor.raw() - slot.device.all.raw()); };
    slot.bytes = reinterpret_cast<std::uint8_t*>(part(slot.device.bytes));
    slot.augmentation = reinterpret_cast<std::int32_t*>(part(slot.device.augmentation));
    slot.labels = reinterpret_cast<std::int32_t*>(part(slot.device.labels));
    release(slot);  // the memory may have served the current stream before
    return slot;
  }

  bool writable(const Slot& slot) const override { return backend_.done(slot.arrived); }
  void wait_until_writable(const Slot& slot) const override {
    if (!writable(slot)) backend_.synchronize(slot.arrived);
  }

  void fill(Slot& slot, Dataset::Split split, std::span<const std::int64_t> samples,
            const std::function<Augmentation(std::int64_t)>& augment) override {
    const auto image_bytes = static_cast<std::size_t>(info_.image.elements());
    slot.uploaded = false;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      slot.labels[i] = label_of(dataset_, split, samples[i]);
      dataset_.image(split, samples[i], slot.bytes + i * image_bytes);
      const Augmentation augmentation = augment ? augment(samples[i]) : centred(padding_);
      slot.augmentation[3 * i] = augmentation.offset_y;
      slot.augmentation[3 * i + 1] = augmentation.offset_x;
      slot.augmentation[3 * i + 2] = augmentation.flip;
    }
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
  }

  void upload(Slot& slot) const override {
    if (slot.uploaded) return;
    const StreamScope scope(backend_, StreamKind::kUpload);
    backend_.wait(slot.free);
    backend_.copy_from_pinned(slot.host.get(), slot.device.all);
    slot.arrived = backend_.record();
    slot.uploaded = true;
  }

  void send(Slot& slot) const override {
    upload(slot);
    backend_.wait(slot.arrived);
    if (fixed_.all) backend_.copy(slot.device.all, fixed_.all);
  }

  void make(Slot& slot) const override {
    const RawBatch& raw = place_of(slot);
    AugmentImages args{.x = raw.bytes, .params = raw.augmentation, .y = slot.batch.images, .crop_padding = padding_};
    for (std::size_t c = 0; c < std::min(args.mean.size(), static_cast<std::size_t>(info_.image[2])); ++c) {
      args.mean[c] = info_.mean[c];
      args.std[c] = info_.std[c];
    }
    backend_.augment_images(args);
  }

  void release(Slot& slot) const override { slot.free = backend_.record(); }

  void settle(Slot& slot) const override {
    const auto leak = [&] { static_cast<void>(new std::shared_ptr<std::byte>(std::move(slot.host))); };
    try {
      backend_.wait(slot.arrived);
      const auto limit = std::chrono::steady_clock::now() + kSettle;
      while (!writable(slot)) {
        if (std::chrono::steady_clock::now() > limit) return leak();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    } catch (...) {
      leak();
      throw;
    }
  }

 private:
  static constexpr std::chrono::seconds kSettle{5};  ///< only a device that is stuck behind a lost rank takes longer

  Shape images_shape() const { return info_.image.with_batch(batch_size_); }
  /// What a slot's batch is made of.
  const RawBatch& place_of(const Slot& slot) const { return fixed_.all ? fixed_ : slot.device; }

  RawBatch make_raw() const {
    constexpr std::size_t kAlignment = 512;  // as if each part were a tensor of its own
    const auto rounded = [](std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
    const Shape augmentation{batch_size_, 3}, labels{batch_size_};
    const std::size_t first = rounded(static_cast<std::size_t>(images_shape().elements()));
    const std::size_t second = first + rounded(static_cast<std::size_t>(augmentation.elements()) * sizeof(std::int32_t));
    const std::size_t end = second + static_cast<std::size_t>(batch_size_) * sizeof(std::int32_t);
    const Tensor all(backend_, Shape{static_cast<std::int64_t>(end)}, DType::kUInt8);
    return {all,
            {all.storage(), 0, images_shape(), DType::kUInt8},
            {all.storage(), first, augmentation, DType::kInt32},
            {all.storage(), second, labels, DType::kInt32}};
  }

  const Dataset& dataset_;
  DatasetInfo info_;
  std::int64_t batch_size_, padding_;
  Backend& backend_;
  DType dtype_;
  RawBatch fixed_;  ///< empty: each slot's batch is made in a place of its own
  Tensor fixed_images_;
};

}  // namespace

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend,
                                             DType dtype, bool fixed_place) {
  require(is_floating(dtype), "loader", "images cannot be {}", name_of(dtype));
  if (backend.device() != DeviceType::kCpu)
    return std::make_unique<DeviceBatchMaker>(dataset, batch_size, crop_padding, backend, dtype, fixed_place);
  switch (dtype) {
    case DType::kFloat32: return std::make_unique<CpuBatchMaker<float>>(dataset, batch_size, crop_padding, backend);
    case DType::kFloat64: return std::make_unique<CpuBatchMaker<double>>(dataset, batch_size, crop_padding, backend);
    case DType::kBFloat16: return std::make_unique<CpuBatchMaker<BFloat16>>(dataset, batch_size, crop_padding, backend);
    case DType::kFloat16: return std::make_unique<CpuBatchMaker<Float16>>(dataset, batch_size, crop_padding, backend);
    default: break;
  }
  fail(ExitCode::kInternal, "loader", "images cannot be {}", name_of(dtype));
}

}  // namespace starling
