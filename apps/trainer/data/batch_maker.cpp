#include "apps/trainer/data/batch_maker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <thread>
#include <type_traits>
#include <utility>

#include "apps/trainer/data/image_table.h"
#include "apps/trainer/data/picture_pool.h"
#include "apps/trainer/data/workers.h"
#include "core/operations/pictures.h"

namespace starling {
namespace {

/// What both kinds of maker do: samples read into host memory, several at a time, numbers of
/// classes checked.
class SampleReader {
 public:
  SampleReader(const Dataset& dataset, const BatchMakerSettings& settings)
      : dataset_(dataset),
        read_(dataset.info().tensors_of(settings.split == Dataset::Split::kTest, settings.side)),
        made_(read_),
        pictures_(dataset.info().pictures.has_value()),
        side_(settings.side),
        split_(settings.split),
        centre_(static_cast<std::int32_t>(settings.crop_padding)),
        boxes_each_(settings.erased.size()),
        boxes_(boxes_each_ * static_cast<std::size_t>(settings.batch_size)),
        workers_(settings.threads) {
    for (std::size_t t = 0; t < read_.size(); ++t) {
      if (read_[t].pixels && images_.rank() == 0) images_ = read_[t].shape;
      if (!settings.soft_target.tensor.empty() && read_[t].name == settings.soft_target.tensor) {
        soft_ = t;
        labels_.resize(static_cast<std::size_t>(settings.batch_size));
        made_[t] = {.name = read_[t].name,
                    .shape = Shape{settings.soft_target.classes},
                    .dtype = DType::kFloat32};
      }
      read_bytes_.push_back(bytes_of(read_[t]));
    }
    places_.resize(static_cast<std::size_t>(workers_.threads()),
                   std::vector<std::byte*>(read_.size()));
  }
  /// Tensors of a sample in a batch
  const std::vector<TensorInfo>& tensors() const { return made_; }
  /// Bytes of one sample's tensor
  std::size_t bytes(std::size_t tensor) const { return bytes_of(made_[tensor]); }
  Workers& workers() { return workers_; }
  const Shape& images() const { return images_; }  ///< of the data's first

  /// Reads samples: for each writes its tensors to place(i, tensor, worker), and calls window(i,
  /// tensor, bytes, window to take, boxes to erase, worker) for each image. Its bytes are changed
  /// by then, but for what later(i) has room for. Pictures are not resized, where target(worker)
  /// takes their pixels. The soft target is left to write_shares().
  template <class Place, class Window, class Later, class Target>
  void read(std::span<const std::int64_t> samples, const ImageChange& change, const Place& place,
            const Window& window, const Later& later, const Target& target) {
    dataset_.will_read(split_, samples);
    const auto read_one = [&](std::int64_t item, int worker) {
      const auto i = static_cast<std::size_t>(item);
      std::vector<std::byte*>& places = places_[static_cast<std::size_t>(worker)];
      for (std::size_t t = 0; t < read_.size(); ++t) {
        places[t] = t == soft_ ? reinterpret_cast<std::byte*>(&labels_[i]) : place(i, t, worker);
      }
      const std::int64_t sample = samples[i];
      bool cut = false;
      PoolTarget* const pool = target(worker);
      if (pictures_) {
        const auto choose = [&](const PictureSize& size) {
          auto part = change.part(sample, size);
          cut = part.has_value();
          return part;
        };
        if (pool) pool->restart();
        dataset_.read_part(split_, sample, choose, side_, places, pool);
        if (pool) pool->finish();
      } else {
        dataset_.read(split_, sample, places);
      }
      for (std::size_t t = 0; t < read_.size(); ++t) {
        const TensorInfo& tensor = read_[t];
        if (tensor.classes > 0 && tensor.dtype == DType::kInt32)
          check_classes(tensor, split_, sample, places[t]);
        if (!tensor.pixels) continue;
        const std::span<std::uint8_t> bytes(
            pool ? pool->pixels() : reinterpret_cast<std::uint8_t*>(places[t]), read_bytes_[t]);
        std::function<void()> resize;
        if (pool) resize = [pool] { pool->resize(); };
        const std::span<ErasedBox> boxes = boxes_of_image(i);
        // Unaugmented: the window in the middle of the padding, which is the image as it is.
        const std::span<PixelStep> steps = later(i);
        if (!change) std::fill(steps.begin(), steps.end(), PixelStep{});
        const Augmentation taken =
            change ? change(sample, bytes, tensor.shape, cut, boxes, steps, std::move(resize))
                   : Augmentation{centre_, centre_, 0};
        window(i, t, bytes.data(), taken, boxes, worker);
      }
    };
    workers_.run(static_cast<std::int64_t>(samples.size()), [&](std::int64_t item, int worker) {
      const std::int64_t sample = samples[static_cast<std::size_t>(item)];
      named(
          "data", [&] { return sample_text(split_, sample); }, [&] { read_one(item, worker); });
    });
  }
  /// Boxes that read() has found to erase of image i.
  std::span<ErasedBox> boxes_of_image(std::size_t i) {
    return std::span(boxes_).subspan(i * boxes_each_, boxes_each_);
  }

  /// The tensor that the soft target is, or as many as there are.
  std::size_t soft_tensor() const { return soft_; }
  /// Writes a row of shares for each sample, of its own class and of its neighbour's. Comes after
  /// read() of so many samples.
  void write_shares(const BatchMix& mix, std::size_t samples, float* out) const {
    const auto classes = static_cast<std::size_t>(made_[soft_].shape.elements());
    const float own = mix.share(images_);
    std::fill_n(out, samples * classes, 0.0F);
    for (std::size_t i = 0; i < samples; ++i) {
      out[i * classes + static_cast<std::size_t>(labels_[i])] += own;
      out[i * classes + static_cast<std::size_t>(labels_[i > 0 ? i - 1 : samples - 1])] +=
          1.0F - own;
    }
  }

 private:
  static std::size_t bytes_of(const TensorInfo& tensor) {
    return static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
  }
  static std::string sample_text(Dataset::Split split, std::int64_t sample) {
    return fmt::format("{} sample {}", split == Dataset::Split::kTrain ? "training" : "test",
                       sample);
  }
  static void check_classes(const TensorInfo& tensor, Dataset::Split split, std::int64_t sample,
                            const std::byte* values) {
    for (std::int64_t i = 0; i < tensor.shape.elements(); ++i) {
      std::int32_t value = 0;
      std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
      if (value >= 0 && value < tensor.classes) continue;
      fail(ExitCode::kUsage, "data", "{} has {} {}, the classes are 0 to {}",
           sample_text(split, sample), tensor.name, value, tensor.classes - 1);
    }
  }

  const Dataset& dataset_;
  std::vector<TensorInfo> read_, made_;  ///< as the data set gives them, and as batches hold them
  bool pictures_;
  std::int64_t side_;
  Dataset::Split split_;
  std::int32_t centre_;
  std::size_t boxes_each_;
  std::vector<ErasedBox> boxes_;  ///< by sample of the batch
  Workers workers_;
  Shape images_;
  std::size_t soft_ = std::numeric_limits<std::size_t>::max();
  std::vector<std::int32_t> labels_;  ///< by sample of the batch
  std::vector<std::size_t> read_bytes_;
  std::vector<std::vector<std::byte*>> places_;  ///< by worker
};

template <class T>
class CpuBatchMaker final : public BatchMaker {
 public:
  CpuBatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : reader_(dataset, settings),
        batch_size_(settings.batch_size),
        mix_(settings.mix),
        backend_(backend),
        windows_(static_cast<std::size_t>(settings.batch_size)) {
    const auto workers = static_cast<std::size_t>(reader_.workers().threads()),
               rows = mix_ ? workers : 0;
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      if (!tensor.pixels) continue;
      const std::vector<std::uint8_t> raw(reader_.bytes(t));
      const std::vector<Wide> row(static_cast<std::size_t>(tensor.shape[1] * tensor.shape[2]));
      images_.emplace(t,
                      Image{{tensor.shape, *tensor.pixels, settings.crop_padding, settings.erased},
                            {tensor.shape, *tensor.pixels, settings.crop_padding, settings.erased},
                            {mix_ ? static_cast<std::size_t>(batch_size_) : workers, raw},
                            {rows, std::vector<T>(row.size())},
                            {rows, {row, row}}});
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
          if (image == images_.end()) return to(t).raw() + i * reader_.bytes(t);
          return reinterpret_cast<std::byte*>(
              image->second.raw[mix_ ? i : static_cast<std::size_t>(worker)].data());
        },
        [&](std::size_t i, std::size_t t, const std::uint8_t* bytes, const Augmentation& window,
            std::span<const ErasedBox> boxes, int) {
          windows_[i] = window;
          if (!mix_)
            images_.at(t).table.write(bytes, window, boxes,
                                      to(t).template data<T>() + i * reader_.bytes(t));
        },
        [](std::size_t) { return std::span<PixelStep>(); },
        [](int) { return static_cast<PoolTarget*>(nullptr); });
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
    if (!mix_) return;
    const BatchMix mix = change.mix(samples.front(), reader_.images());
    for (auto& [t, image] : images_) {
      T* out = to(t).template data<T>();
      reader_.workers().run(slot.batch.samples, [&, t = t, &image = image](std::int64_t i,
                                                                           int worker) {
        write_mixed(image, reader_.tensors()[t].shape, mix, static_cast<std::size_t>(i),
                    samples.size(), worker, out + static_cast<std::size_t>(i) * reader_.bytes(t));
      });
    }
    if (reader_.soft_tensor() < reader_.tensors().size()) {
      reader_.write_shares(mix, samples.size(), to(reader_.soft_tensor()).template data<float>());
    }
  }

  void upload(Slot&) const override {}
  void send(Slot&) const override {}
  void make(Slot&) const override {}
  void release(Slot&) const override {}
  void settle(Slot&) const override {}

 private:
  using Wide = std::conditional_t<sizeof(T) == 8, double, float>;
  struct Image {
    ImageTable<T> table;
    ImageTable<Wide> wide;  ///< for mixing, before numbers are rounded
    /// By worker, for mixing by sample: one image as the data set gives it
    std::vector<std::vector<std::uint8_t>> raw;
    std::vector<std::vector<T>> row;                     ///< by worker, for mixing
    std::vector<std::array<std::vector<Wide>, 2>> rows;  ///< by worker, for mixing
  };

  /// Image i of so many, mixed with the one before.
  void write_mixed(Image& image, const Shape& shape, const BatchMix& mix, std::size_t i,
                   std::size_t samples, int worker, T* out) {
    const std::size_t other = i > 0 ? i - 1 : samples - 1;
    const std::int64_t width = shape[1], channels = shape[2];
    auto& rows = image.rows[static_cast<std::size_t>(worker)];
    std::vector<Wide>&own = rows[0], &neighbour = rows[1];
    const Wide share = static_cast<Wide>(mix.own) / static_cast<Wide>(math::kWholeShare);
    for (std::int64_t y = 0; y < shape[0]; ++y, out += width * channels) {
      const bool through = y >= mix.top && y < mix.bottom;
      if (share == Wide(1)) {
        image.table.write_row(image.raw[i].data(), windows_[i], reader_.boxes_of_image(i), y, out);
      } else {
        image.wide.write_row(image.raw[i].data(), windows_[i], reader_.boxes_of_image(i), y,
                             own.data());
        image.wide.write_row(image.raw[other].data(), windows_[other],
                             reader_.boxes_of_image(other), y, neighbour.data());
        for (std::size_t k = 0; k < own.size(); ++k)
          out[k] = T(math::mixed_pixel(share, own[k], neighbour[k]));
      }
      if (!through) continue;
      std::vector<T>& row = image.row[static_cast<std::size_t>(worker)];
      image.table.write_row(image.raw[other].data(), windows_[other], reader_.boxes_of_image(other),
                            y, row.data());
      std::copy(row.begin() + mix.left * channels, row.begin() + mix.right * channels,
                out + mix.left * channels);
    }
  }

  SampleReader reader_;
  std::int64_t batch_size_;
  bool mix_;
  Backend& backend_;
  std::vector<Augmentation> windows_;    ///< by sample of the batch
  std::map<std::size_t, Image> images_;  ///< by tensor
};

/// The device resizes pictures, changes colours and shapes, crops, flips, normalises, erases, mixes
/// and casts; a byte a number crosses the bus, or the pixels of each picture's part.
class DeviceBatchMaker final : public BatchMaker {
 public:
  DeviceBatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : reader_(dataset, settings),
        batch_size_(settings.batch_size),
        padding_(settings.crop_padding),
        erased_(settings.erased),
        mix_(settings.mix),
        backend_(backend),
        dtype_(settings.dtype) {
    std::int64_t images = 0;
    for (const TensorInfo& tensor : reader_.tensors()) {
      if (!tensor.pixels) continue;
      ++images;
      image_ = tensor.shape;
    }
    if (images == 1) steps_ = settings.steps;  // places of steps are those of one image
    if (images == 1 && dataset.info().pictures && image_[2] == 3) {
      pool_ = std::make_unique<PicturePool>(image_.elements(), batch_size_);
      for (int worker = 0; worker < reader_.workers().threads(); ++worker)
        targets_.emplace_back(*pool_, image_);
      resized_ = Tensor(backend, image_.with_batch(batch_size_), DType::kUInt8);
    }
    if (steps_ > 0) {
      changed_ = Tensor(backend, image_.with_batch(batch_size_), DType::kUInt8);
      scratch_ = Tensor(backend, image_.with_batch(batch_size_), DType::kUInt8);
    }
    if (!settings.fixed_place) return;
    fixed_ = make_raw();
    fixed_batch_ = make_batch(fixed_);
  }

  Slot make_slot() const override {
    Slot slot;
    slot.device = make_raw();
    slot.batch = fixed_.all ? fixed_batch_ : make_batch(slot.device);
    const std::size_t all = slot.bytes = slot.device.all.bytes();
    slot.host = backend_.allocate_host(all);
    // The gaps between the parts, and what a short batch leaves, are copied too
    std::memset(slot.host.get(), 0, all);
    release(slot);  // the memory may have served the current stream before
    return slot;
  }

  bool writable(const Slot& slot) const override { return backend_.done(slot.arrived); }
  void wait_until_writable(const Slot& slot) const override {
    if (!writable(slot)) backend_.synchronize(slot.arrived);
  }

  void fill(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    slot.uploaded = false;
    const auto host = [&](const Tensor& part) {
      return slot.host.get() + (part.raw() - slot.device.all.raw());
    };
    if (pool_) pool_->restart(reinterpret_cast<std::uint8_t*>(host(slot.device.pool)));
    reader_.read(
        samples, change,
        [&](std::size_t i, std::size_t t, int worker) {
          if (pool_ && reader_.tensors()[t].pixels)
            return targets_[static_cast<std::size_t>(worker)].image();
          return host(slot.device.tensors[t]) + i * reader_.bytes(t);
        },
        [&](std::size_t i, std::size_t, const std::uint8_t*, const Augmentation& window,
            std::span<const ErasedBox> boxes, int worker) {
          if (pool_) cuts_of(slot)[i] = targets_[static_cast<std::size_t>(worker)].cut;
          const std::array<std::int32_t, 3> row{window.offset_y, window.offset_x, window.flip};
          std::memcpy(host(slot.device.windows) + i * sizeof row, row.data(), sizeof row);
          if (!boxes.empty())
            std::memcpy(host(slot.device.boxes) + i * boxes.size_bytes(), boxes.data(),
                        boxes.size_bytes());
        },
        [&](std::size_t i) {
          if (steps_ == 0) return std::span<PixelStep>();
          const auto most = static_cast<std::size_t>(steps_);
          return std::span(reinterpret_cast<PixelStep*>(host(slot.device.steps)) + i * most, most);
        },
        [&](int worker) { return pool_ ? &targets_[static_cast<std::size_t>(worker)] : nullptr; });
    if (pool_) {
      // What a short batch leaves out is made of whatever lies there.
      std::fill(cuts_of(slot) + samples.size(), cuts_of(slot) + batch_size_,
                CutPicture::whole(image_[0], image_[1]));
      slot.bytes = static_cast<std::size_t>(slot.device.pool.raw() - slot.device.all.raw()) +
                   static_cast<std::size_t>(pool_->used());
    }
    if (mix_) {
      const BatchMix mix = change.mix(samples.front(), reader_.images());
      std::memcpy(host(slot.device.mix), &mix, sizeof mix);
      if (const std::size_t soft = reader_.soft_tensor(); soft < reader_.tensors().size()) {
        reader_.write_shares(mix, samples.size(),
                             reinterpret_cast<float*>(host(slot.device.tensors[soft])));
      }
    }
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
  }

  void upload(Slot& slot) const override {
    if (slot.uploaded) return;
    const StreamScope scope(backend_, StreamKind::kUpload);
    backend_.wait(slot.free);
    backend_.copy_from_pinned(slot.host.get(), filled(slot, slot.device.all));
    slot.arrived = backend_.record();
    slot.uploaded = true;
  }

  void send(Slot& slot) const override {
    upload(slot);
    backend_.wait(slot.arrived);
    if (fixed_.all) backend_.copy(filled(slot, slot.device.all), filled(slot, fixed_.all));
  }

  void make(Slot& slot) const override {
    const RawBatch& raw = fixed_.all ? fixed_ : slot.device;
    for (std::size_t t = 0; t < raw.tensors.size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      if (!tensor.pixels) continue;
      if (pool_) backend_.resize_pictures({.x = raw.pool, .parts = raw.cuts, .y = resized_});
      if (steps_ > 0)
        backend_.change_pixels(
            {.x = raw.tensors[t], .steps = raw.steps, .scratch = scratch_, .y = changed_});
      AugmentImages args{.x = steps_ > 0 ? changed_ : raw.tensors[t],
                         .params = raw.windows,
                         .y = slot.batch.tensors[t].tensor,
                         .crop_padding = padding_,
                         .boxes = raw.boxes,
                         .mix = raw.mix};
      std::copy(erased_.begin(), erased_.end(), args.values.begin());
      for (std::size_t c = 0;
           c < std::min(args.mean.size(), static_cast<std::size_t>(tensor.shape[2])); ++c) {
        args.mean[c] = tensor.pixels->mean[c];
        args.std[c] = tensor.pixels->std[c];
      }
      backend_.augment_images(args);
    }
  }

  void release(Slot& slot) const override { slot.free = backend_.record(); }

  void settle(Slot& slot) const override {
    const auto leak = [&] {
      static_cast<void>(new std::shared_ptr<std::byte>(std::move(slot.host)));
    };
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
  /// Longest wait of settle(): only a device that is stuck behind a lost rank takes longer
  static constexpr std::chrono::seconds kSettle{5};

  CutPicture* cuts_of(const Slot& slot) const {
    return reinterpret_cast<CutPicture*>(slot.host.get() +
                                         (slot.device.cuts.raw() - slot.device.all.raw()));
  }
  /// The part of `all` that fill() has written.
  static Tensor filled(const Slot& slot, const Tensor& all) {
    return slot.bytes == all.bytes() ? all
                                     : all.slice(0, Shape{static_cast<std::int64_t>(slot.bytes)});
  }

  /// Makes a slot's batch of `raw`: images are numbers of their own, everything else is taken where
  /// it lies.
  Batch make_batch(const RawBatch& raw) const {
    Batch batch{.samples = batch_size_, .format = dtype_};
    for (std::size_t t = 0; t < raw.tensors.size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      batch.tensors.push_back({tensor.name, tensor.pixels
                                                ? Tensor(backend_, raw.tensors[t].shape(), dtype_)
                                                : raw.tensors[t]});
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
    const auto pooled = [&](std::size_t t) { return pool_ && reader_.tensors()[t].pixels; };
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) {
      add(pooled(t) ? 0 : static_cast<std::size_t>(batch_size_) * reader_.bytes(t));
    }
    const Shape windows{batch_size_, 3},
        boxes{batch_size_, static_cast<std::int64_t>(erased_.size()), 4}, mix{5},
        steps{batch_size_, steps_, kPixelStepNumbers},
        cuts{pool_ ? batch_size_ : 0, kCutPictureNumbers};
    add(static_cast<std::size_t>(windows.elements()) * sizeof(std::int32_t));
    add(static_cast<std::size_t>(boxes.elements()) * sizeof(std::int32_t));
    add(static_cast<std::size_t>(mix_ ? mix.elements() : 0) * sizeof(std::int32_t));
    add(static_cast<std::size_t>(steps.elements()) * sizeof(std::int32_t));
    add(static_cast<std::size_t>(cuts.elements()) * sizeof(std::int32_t));
    add(static_cast<std::size_t>(pool_ ? pool_->bytes() : 0));  // the last: it is not always full
    RawBatch raw;
    raw.all = Tensor(backend_, Shape{static_cast<std::int64_t>(end)}, DType::kUInt8);
    for (std::size_t t = 0; t < reader_.tensors().size(); ++t) {
      const TensorInfo& tensor = reader_.tensors()[t];
      if (pooled(t)) {
        raw.tensors.push_back(resized_);
      } else {
        raw.tensors.emplace_back(raw.all.storage(), places[t], tensor.shape.with_batch(batch_size_),
                                 tensor.dtype);
      }
    }
    const std::size_t more = reader_.tensors().size();
    raw.windows = Tensor(raw.all.storage(), places[more], windows, DType::kInt32);
    if (!erased_.empty())
      raw.boxes = Tensor(raw.all.storage(), places[more + 1], boxes, DType::kInt32);
    if (mix_) raw.mix = Tensor(raw.all.storage(), places[more + 2], mix, DType::kInt32);
    if (steps_ > 0) raw.steps = Tensor(raw.all.storage(), places[more + 3], steps, DType::kInt32);
    if (pool_) {
      raw.cuts = Tensor(raw.all.storage(), places[more + 4], cuts, DType::kInt32);
      raw.pool = Tensor(raw.all.storage(), places[more + 5], Shape{pool_->bytes()}, DType::kUInt8);
    }
    return raw;
  }

  SampleReader reader_;
  std::int64_t batch_size_, padding_;
  std::vector<double> erased_;
  bool mix_;
  Backend& backend_;
  DType dtype_;
  Shape image_;
  std::int64_t steps_ = 0;              ///< left to the device, at most, of an image
  std::unique_ptr<PicturePool> pool_;   ///< null: images have the data set's size
  std::deque<PoolTarget> targets_;      ///< by worker
  Tensor resized_, changed_, scratch_;  ///< of one batch: batches are made one after another
  RawBatch fixed_;                      ///< empty: each slot's batch is made in a place of its own
  Batch fixed_batch_;
};

}  // namespace

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset,
                                             const BatchMakerSettings& settings, Backend& backend) {
  require(is_floating(settings.dtype), "loader", "images cannot be {}", name_of(settings.dtype));
  if (settings.erased.size() > AugmentImages().values.size()) {
    fail(ExitCode::kUsage, "loader",
         "data.augment erases {} rectangles of an image; allowed: at most {}",
         settings.erased.size(), AugmentImages().values.size());
  }
  if (backend.device() != DeviceType::kCpu)
    return std::make_unique<DeviceBatchMaker>(dataset, settings, backend);
  switch (settings.dtype) {
    case DType::kFloat32: return std::make_unique<CpuBatchMaker<float>>(dataset, settings, backend);
    case DType::kFloat64:
      return std::make_unique<CpuBatchMaker<double>>(dataset, settings, backend);
    case DType::kBFloat16:
      return std::make_unique<CpuBatchMaker<BFloat16>>(dataset, settings, backend);
    case DType::kFloat16:
      return std::make_unique<CpuBatchMaker<Float16>>(dataset, settings, backend);
    default: break;
  }
  fail(ExitCode::kInternal, "loader", "images cannot be {}", name_of(settings.dtype));
}

}  // namespace starling
