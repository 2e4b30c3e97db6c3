#include "apps/trainer/data/batch_maker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "apps/trainer/data/image_table.h"
#include "apps/trainer/data/workers.h"

namespace starling {
namespace {

/// What both kinds of maker do: samples read into host memory, several at a time, numbers of classes checked.
class SampleReader {
 public:
  SampleReader(const Dataset& dataset, const BatchMakerSettings& settings)
      : dataset_(dataset),
        tensors_(dataset.info().tensors_of(settings.split == Dataset::Split::kTest)),
        pictures_(dataset.info().pictures.has_value()),
        split_(settings.split),
        centre_(static_cast<std::int32_t>(settings.crop_padding)),
        workers_(settings.threads) {
    for (const TensorInfo& tensor : tensors_) bytes_.push_back(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype));
    places_.resize(static_cast<std::size_t>(workers_.threads()), std::vector<std::byte*>(bytes_.size()));
  }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::size_t bytes(std::size_t tensor) const { return bytes_[tensor]; }  ///< of one sample
  int threads() const { return workers_.threads(); }

  /// For each sample: writes its tensors to place(i, tensor, worker), and calls window(i, tensor, bytes, window to take, worker) for each
  /// image.
  template <class Place, class Window>
  void read(std::span<const std::int64_t> samples, const ImageChange& change, const Place& place, const Window& window) {
    dataset_.will_read(split_, samples);
    workers_.run(static_cast<std::int64_t>(samples.size()), [&](std::int64_t item, int worker) {
      const auto i = static_cast<std::size_t>(item);
      std::vector<std::byte*>& places = places_[static_cast<std::size_t>(worker)];
      for (std::size_t t = 0; t < bytes_.size(); ++t) places[t] = place(i, t, worker);
      const std::int64_t sample = samples[i];
      bool cut = false;
      if (pictures_) {
        const auto choose = [&](const PictureSize& size) {
          auto part = change.part(sample, size);
          cut = part.has_value();
          return part;
        };
        dataset_.read_part(split_, sample, choose, places);
      } else {
        dataset_.read(split_, sample, places);
      }
      for (std::size_t t = 0; t < bytes_.size(); ++t) {
        const TensorInfo& tensor = tensors_[t];
        if (tensor.classes > 0 && tensor.dtype == DType::kInt32) check_classes(tensor, split_, sample, places[t]);
        if (!tensor.pixels) continue;
        const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(places[t]), bytes_[t]);
        // Unaugmented: the window in the middle of the padding, which is the image as it is.
        window(i, t, bytes.data(), change ? change(sample, bytes, tensor.shape, cut) : Augmentation{centre_, centre_, 0}, worker);
      }
    });
  }

 private:
  static void check_classes(const TensorInfo& tensor, Dataset::Split split, std::int64_t sample, const std::byte* values) {
    for (std::int64_t i = 0; i < tensor.shape.elements(); ++i) {
      std::int32_t value = 0;
      std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
      if (value >= 0 && value < tensor.classes) continue;
      fail(ExitCode::kUsage, "data", "{} sample {} has {} {}, the classes are 0 to {}",
           split == Dataset::Split::kTrain ? "training" : "test", sample, tensor.name, value, tensor.classes - 1);
    }
  }

  const Dataset& dataset_;
  std::vector<TensorInfo> tensors_;
  bool pictures_;
  Dataset::Split split_;
  std::int32_t centre_;
  Workers workers_;
  std::vector<std::size_t> bytes_;
  std::vector<std::vector<std::byte*>> places_;  ///< by worker
};

template <class T>
class CpuBatchMaker final : public BatchMaker {
 public:
  CpuBatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : reader_(dataset, settings), batch_size_(settings.batch_size), backend_(backend) {
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      const std::vector<std::byte> raw(tensor.pixels ? reader_.bytes(t) : 0);
      if (tensor.pixels)
        images_.emplace(t,
                        Image{{tensor.shape, *tensor.pixels, settings.crop_padding}, {static_cast<std::size_t>(reader_.threads()), raw}});
    }
  }

  Slot make_slot() const override {
    Slot slot;
    slot.batch = empty_batch(reader_.tensors(), backend_, batch_size_, DTypeOf<T>::value);
    return slot;
  }

  void fill(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    const auto to = [&](std::size_t t) -> const Tensor& { return slot.batch.tensors[t].tensor; };
    reader_.read(
        samples, change,
        [&](std::size_t i, std::size_t t, int worker) {
          const auto image = images_.find(t);
          return image != images_.end() ? image->second.raw[static_cast<std::size_t>(worker)].data() : to(t).raw() + i * reader_.bytes(t);
        },
        [&](std::size_t i, std::size_t t, const std::uint8_t* bytes, const Augmentation& window, int) {
          images_.at(t).table.write(bytes, window, to(t).template data<T>() + i * reader_.bytes(t));
        });
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
  }

  void upload(Slot&) const override {}
  void send(Slot&) const override {}
  void make(Slot&) const override {}
  void release(Slot&) const override {}
  void settle(Slot&) const override {}

 private:
  struct Image {
    ImageTable<T> table;
    std::vector<std::vector<std::byte>> raw;  ///< by worker: one image as the data set gives it
  };
  SampleReader reader_;
  std::int64_t batch_size_;
  Backend& backend_;
  std::map<std::size_t, Image> images_;  ///< by tensor
};

/// The device crops, flips, normalises and casts; a byte a number crosses the bus.
class DeviceBatchMaker final : public BatchMaker {
 public:
  DeviceBatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : reader_(dataset, settings),
        batch_size_(settings.batch_size),
        padding_(settings.crop_padding),
        backend_(backend),
        dtype_(settings.dtype) {
    if (!settings.fixed_place) return;
    fixed_ = make_raw();
    fixed_batch_ = make_batch(fixed_);
  }

  Slot make_slot() const override {
    Slot slot;
    slot.device = make_raw();
    slot.batch = fixed_.all ? fixed_batch_ : make_batch(slot.device);
    const std::size_t all = slot.device.all.bytes();
    slot.host = backend_.allocate_host(all);
    std::memset(slot.host.get(), 0, all);  // the gaps between the parts, and what a short batch leaves, are copied too
    release(slot);                         // the memory may have served the current stream before
    return slot;
  }

  bool writable(const Slot& slot) const override { return backend_.done(slot.arrived); }
  void wait_until_writable(const Slot& slot) const override {
    if (!writable(slot)) backend_.synchronize(slot.arrived);
  }

  void fill(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    slot.uploaded = false;
    const auto host = [&](const Tensor& part) { return slot.host.get() + (part.raw() - slot.device.all.raw()); };
    reader_.read(
        samples, change, [&](std::size_t i, std::size_t t, int) { return host(slot.device.tensors[t]) + i * reader_.bytes(t); },
        [&](std::size_t i, std::size_t, const std::uint8_t*, const Augmentation& window, int) {
          const std::array<std::int32_t, 3> row{window.offset_y, window.offset_x, window.flip};
          std::memcpy(host(slot.device.windows) + i * sizeof row, row.data(), sizeof row);
        });
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
    const RawBatch& raw = fixed_.all ? fixed_ : slot.device;
    for (std::size_t t = 0; t < raw.tensors.size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      if (!tensor.pixels) continue;
      AugmentImages args{.x = raw.tensors[t], .params = raw.windows, .y = slot.batch.tensors[t].tensor, .crop_padding = padding_};
      for (std::size_t c = 0; c < std::min(args.mean.size(), static_cast<std::size_t>(tensor.shape[2])); ++c) {
        args.mean[c] = tensor.pixels->mean[c];
        args.std[c] = tensor.pixels->std[c];
      }
      backend_.augment_images(args);
    }
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

  /// What a slot's batch is, made of `raw`: images are numbers of their own, everything else is taken where it lies.
  Batch make_batch(const RawBatch& raw) const {
    Batch batch{.samples = batch_size_, .format = dtype_};
    for (std::size_t t = 0; t < raw.tensors.size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      batch.tensors.push_back({tensor.name, tensor.pixels ? Tensor(backend_, raw.tensors[t].shape(), dtype_) : raw.tensors[t]});
    }
    return batch;
  }

  RawBatch make_raw() const {
    constexpr std::size_t kAlignment = 512;  // as if each part were a tensor of its own
    std::size_t end = 0;
    std::vector<std::size_t> places;
    const auto add = [&](std::size_t bytes) {
      places.push_back((end + kAlignment - 1) / kAlignment * kAlignment);
      end = places.back() + bytes;
    };
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) add(static_cast<std::size_t>(batch_size_) * reader_.bytes(t));
    const Shape windows{batch_size_, 3};
    add(static_cast<std::size_t>(windows.elements()) * sizeof(std::int32_t));
    RawBatch raw;
    raw.all = Tensor(backend_, Shape{static_cast<std::int64_t>(end)}, DType::kUInt8);
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      raw.tensors.emplace_back(raw.all.storage(), places[t], tensor.shape.with_batch(batch_size_), tensor.dtype);
    }
    raw.windows = Tensor(raw.all.storage(), places.back(), windows, DType::kInt32);
    return raw;
  }

  SampleReader reader_;
  std::int64_t batch_size_, padding_;
  Backend& backend_;
  DType dtype_;
  RawBatch fixed_;  ///< empty: each slot's batch is made in a place of its own
  Batch fixed_batch_;
};

}  // namespace

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend) {
  require(is_floating(settings.dtype), "loader", "images cannot be {}", name_of(settings.dtype));
  if (backend.device() != DeviceType::kCpu) return std::make_unique<DeviceBatchMaker>(dataset, settings, backend);
  switch (settings.dtype) {
    case DType::kFloat32: return std::make_unique<CpuBatchMaker<float>>(dataset, settings, backend);
    case DType::kFloat64: return std::make_unique<CpuBatchMaker<double>>(dataset, settings, backend);
    case DType::kBFloat16: return std::make_unique<CpuBatchMaker<BFloat16>>(dataset, settings, backend);
    case DType::kFloat16: return std::make_unique<CpuBatchMaker<Float16>>(dataset, settings, backend);
    default: break;
  }
  fail(ExitCode::kInternal, "loader", "images cannot be {}", name_of(settings.dtype));
}

}  // namespace starling
