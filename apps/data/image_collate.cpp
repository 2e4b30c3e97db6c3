#include "apps/data/image_collate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <utility>

#include "apps/data/batch_maker.h"
#include "apps/data/picture_pool.h"
#include "apps/inference/description.h"
#include "core/error.h"
#include "core/operations/pictures.h"
#include "kernels/cpu/cpu_backend.h"

namespace starling {
namespace {

constexpr std::size_t kNoTensor = std::numeric_limits<std::size_t>::max();

/// The tensors of one sample as the data set gives them, and as a batch has them. With mixing,
/// class indices become vectors of class shares.
struct SampleTensors {
  std::vector<TensorInfo> read, made;
  std::size_t soft = kNoTensor;
};

SampleTensors tensors_of(const Dataset& dataset, const BatchMakerSettings& settings) {
  SampleTensors tensors;
  tensors.read =
      images_of(dataset.info())
          .tensors(dataset.info().tensors, settings.split == Dataset::Split::kTest, settings.side);
  tensors.made = tensors.read;
  for (std::size_t t = 0; t < tensors.read.size(); ++t) {
    if (settings.soft_target.tensor.empty() || tensors.read[t].name != settings.soft_target.tensor)
      continue;
    tensors.soft = t;
    tensors.made[t] = {.name = tensors.read[t].name,
                       .shape = Shape{settings.soft_target.classes},
                       .dtype = DType::kFloat32};
  }
  return tensors;
}

/// Makes batches of images with the backend's operations: colour and geometry steps, crop, flip,
/// normalisation, erasing, mixing and cast. A device processes a whole batch, and also resizes
/// pictures: uint8 pixels are uploaded. On the CPU each worker processes the image that it has just
/// read while that is in its cache. Mixed batches, and batches of images too small for a call each,
/// are processed as a whole once they are read.
class ImageMaker final : public BatchMaker {
  using enum ImageCollate::Part;

 public:
  ImageMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend,
             const SampleTensors& of)
      : BatchMaker(dataset, settings, backend, of.read, of.made),
        soft_(of.soft),
        labels_(soft_ == kNoTensor ? 0 : static_cast<std::size_t>(batch_size_)),
        pictures_(images_of(dataset.info()).pictures.has_value()),
        side_(settings.side),
        padding_(settings.crop_padding),
        erased_(settings.erased),
        mix_(settings.mix) {
    std::int64_t images = 0;
    for (const TensorInfo& tensor : tensors()) {
      if (!tensor.pixels) continue;
      if (images++ == 0) first_ = tensor.shape;
      shape_ = tensor.shape;
    }
    if (images == 1) steps_ = settings.steps;  // steps are recorded for a single image only
    if (!on_host_) {
      if (images == 1 && pictures_ && shape_[2] == 3) {
        pool_ = std::make_unique<PicturePool>(shape_.elements(), batch_size_);
        for (int worker = 0; worker < workers_.threads(); ++worker)
          targets_.emplace_back(*pool_, shape_);
        resized_ = Tensor(backend, shape_.with_batch(batch_size_), DType::kUInt8);
      }
      change_buffers_ = make_change_buffers(backend, batch_size_);
      return;
    }
    constexpr std::int64_t kSmallImage = 16384;  // bytes
    by_batch_ = mix_ || shape_.elements() <= kSmallImage;
    cpu_ = std::make_unique<CpuBackend>(settings.threads);
    for (int worker = 0; worker < (by_batch_ ? 1 : workers_.threads()); ++worker) {
      const std::int64_t each = by_batch_ ? batch_size_ : 1;
      HostBuffers& buffers = host_buffers_.emplace_back(HostBuffers{make_raw(*cpu_, each), {}});
      std::memset(buffers.read.all.raw(), 0,
                  buffers.read.all.bytes());  // a short batch does not write the end
      for (std::size_t t = 0; t < tensors().size(); ++t)
        buffers.work.push_back(work_on(buffers.read, t, make_change_buffers(*cpu_, each)));
    }
  }

  void make(Slot& slot) const override {
    if (on_host_) return;
    const RawBatch& from = raw(slot);
    if (pool_)
      backend_.resize_pictures({.x = from.more[kPool], .parts = from.more[kCuts], .y = resized_});
    for (std::size_t t = 0; t < from.tensors.size(); ++t) {
      Work work = work_on(from, t, change_buffers_);
      run(backend_, work, slot.batch.tensors[t].tensor);
    }
  }

 private:
  /// Memory that change_pixels() needs in addition to its input.
  struct ChangeBuffers {
    Tensor y, scratch;
  };
  ChangeBuffers make_change_buffers(Backend& backend, std::int64_t images) const {
    if (steps_ == 0) return {};
    const Shape shape = shape_.with_batch(images);
    return {Tensor(backend, shape, DType::kUInt8), Tensor(backend, shape, DType::kUInt8)};
  }

  /// The operations on a tensor of images; empty for other tensors.
  struct Work {
    ChangePixels change;  ///< unused if there are no steps
    AugmentImages augment;
  };
  Work work_on(const RawBatch& from, std::size_t t, const ChangeBuffers& buffers) const {
    const TensorInfo& tensor = tensors()[t];
    Work work;
    if (!tensor.pixels) return work;
    if (steps_ > 0) work.change = {from.tensors[t], from.more[kSteps], buffers.scratch, buffers.y};
    work.augment = {.x = steps_ > 0 ? buffers.y : from.tensors[t],
                    .params = from.more[kWindows],
                    .y = {},
                    .crop_padding = padding_,
                    .boxes = from.more[kBoxes],
                    .mix = from.more[kMix]};
    std::copy(erased_.begin(), erased_.end(), work.augment.values.begin());
    const auto channels =
        std::min<std::size_t>(work.augment.mean.size(), static_cast<std::size_t>(tensor.shape[2]));
    std::copy_n(tensor.pixels->mean.begin(), channels, work.augment.mean.begin());
    std::copy_n(tensor.pixels->std.begin(), channels, work.augment.std.begin());
    return work;
  }
  static void run(Backend& backend, Work& work, Tensor to) {
    if (!work.augment.x) return;
    if (work.change.x) backend.change_pixels(work.change);
    work.augment.y = std::move(to);
    backend.augment_images(work.augment);
  }

  std::vector<Part> parts(std::int64_t images) const override {
    const auto erased = std::ssize(erased_);
    return {{Shape{images, 3}},
            {Shape{images, erased, 4}, DType::kInt32, erased > 0},
            {Shape{5}, DType::kInt32, mix_},
            {Shape{images, steps_, kPixelStepNumbers}, DType::kInt32, steps_ > 0},
            {Shape{images, kCutPictureNumbers}, DType::kInt32, pool_ != nullptr},
            {Shape{pool_ ? pool_->bytes() : 0}, DType::kUInt8, pool_ != nullptr}};
  }
  const Tensor* made_elsewhere(std::size_t t) const override {
    return pool_ && tensors()[t].pixels ? &resized_ : nullptr;
  }

  /// Where the parameters of a sample's image are written: row `i` of `parts`.
  struct Place {
    const RawBatch& parts;
    std::size_t i;
  };
  Place place_of(const Slot& slot, std::size_t i, int worker) const {
    if (!on_host_) return {slot.device, i};
    return by_batch_ ? Place{host_buffers_[0].read, i}
                     : Place{host_buffers_[static_cast<std::size_t>(worker)].read, 0};
  }
  template <class T>
  T* memory_of(const Slot& slot, const Tensor& part) const {
    return reinterpret_cast<T*>(on_host_ ? part.raw() : host(slot, part));
  }

  std::byte* place(const Slot& slot, std::size_t i, std::size_t t, int worker) override {
    if (t == soft_) return reinterpret_cast<std::byte*>(&labels_[i]);
    if (!tensors()[t].pixels) return BatchMaker::place(slot, i, t, worker);
    if (pool_) return targets_[static_cast<std::size_t>(worker)].image();
    const Place place = place_of(slot, i, worker);
    return memory_of<std::byte>(slot, place.parts.tensors[t]) + place.i * tensors()[t].bytes();
  }

  void begin(Slot& slot) override {
    if (pool_) pool_->restart(memory_of<std::uint8_t>(slot, slot.device.more[kPool]));
  }

  /// Reads a sample and applies its augmentations, except steps recorded for the backend. With
  /// pool_, the picture's pixels are stored in the pool and not resized here.
  void read(const Reading& reading) override {
    const Slot& slot = reading.slot;
    const ImageChange& change = reading.change;
    const std::int64_t drawn = change.drawn(reading.index, reading.sample);
    const auto worker = static_cast<std::size_t>(reading.worker),
               most = static_cast<std::size_t>(steps_);
    PoolTarget* pool = pool_ ? &targets_[worker] : nullptr;
    bool cut = false;
    if (pictures_) {
      const auto choose = [&](const PictureSize& size) {
        auto part = change.part(drawn, size);
        cut = part.has_value();
        return part;
      };
      if (pool) pool->restart();
      dataset_.read_part(split_, reading.sample, choose, side_, reading.places, pool);
      if (pool) pool->finish();
    } else {
      BatchMaker::read(reading);
    }
    const auto [parts, i] = place_of(slot, reading.index, reading.worker);
    std::span<PixelStep> later;
    if (most > 0)
      later = std::span(memory_of<PixelStep>(slot, parts.more[kSteps]) + i * most, most);
    std::span<ErasedBox> boxes;
    if (!erased_.empty())
      boxes = std::span(memory_of<ErasedBox>(slot, parts.more[kBoxes]) + i * erased_.size(),
                        erased_.size());
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      const TensorInfo& tensor = tensors()[t];
      if (!tensor.pixels) continue;
      // Without augmentation: the window in the middle of the padding, i.e. the image itself.
      const auto centre = static_cast<std::int32_t>(padding_);
      Augmentation window{centre, centre, 0};
      std::fill(later.begin(), later.end(), PixelStep{});
      std::fill(boxes.begin(), boxes.end(), ErasedBox{});
      if (change) {
        const std::span<std::uint8_t> bytes(
            pool ? pool->pixels() : reinterpret_cast<std::uint8_t*>(reading.places[t]),
            static_cast<std::size_t>(tensor.shape.elements()));
        std::function<void()> resize;
        if (pool) resize = [pool] { pool->resize(); };
        window = change(drawn, bytes, tensor.shape, cut, boxes, later, std::move(resize));
      }
      if (pool) memory_of<CutPicture>(slot, parts.more[kCuts])[i] = pool->cut;
      const std::array<std::int32_t, 3> row{window.offset_y, window.offset_x, window.flip};
      std::memcpy(memory_of<std::int32_t>(slot, parts.more[kWindows]) + i * row.size(), row.data(),
                  sizeof row);
      if (!on_host_ || by_batch_) continue;
      const Shape& one = parts.tensors[t].shape();
      run(*cpu_, host_buffers_[worker].work[t],
          slot.batch.tensors[t].tensor.slice(
              static_cast<std::int64_t>(reading.index) * one.elements(), one));
    }
  }

  void end(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    if (pool_) {
      // A short batch's missing images are made from uninitialised pixels, but need valid
      // parameters.
      CutPicture* cuts = memory_of<CutPicture>(slot, slot.device.more[kCuts]);
      std::fill(cuts + samples.size(), cuts + batch_size_, CutPicture::whole(shape_[0], shape_[1]));
      slot.bytes = static_cast<std::size_t>(slot.device.more[kPool].raw() - slot.device.all.raw()) +
                   static_cast<std::size_t>(pool_->used());
    }
    if (mix_) {
      const BatchMix mix = change.mix(change.drawn(0, samples.front()), first_);
      const Tensor& part = place_of(slot, 0, 0).parts.more[kMix];
      std::memcpy(memory_of<BatchMix>(slot, part), &mix, sizeof mix);
      if (soft_ != kNoTensor)
        write_shares(mix, samples.size(), reinterpret_cast<float*>(memory(slot, soft_)));
    }
    for (std::size_t t = 0; by_batch_ && t < tensors().size(); ++t)
      run(*cpu_, host_buffers_[0].work[t], slot.batch.tensors[t].tensor);
  }

  /// Writes a row of class shares for each sample: of its own class and of its neighbour's.
  void write_shares(const BatchMix& mix, std::size_t samples, float* out) const {
    const auto classes = static_cast<std::size_t>(tensors()[soft_].shape.elements());
    const float own = mix.share(first_);
    std::fill_n(out, samples * classes, 0.0F);
    for (std::size_t i = 0; i < samples; ++i) {
      out[i * classes + static_cast<std::size_t>(labels_[i])] += own;
      out[i * classes + static_cast<std::size_t>(labels_[i > 0 ? i - 1 : samples - 1])] +=
          1.0F - own;
    }
  }

  /// Buffers on the CPU that samples are read into, and the operations on them.
  struct HostBuffers {
    RawBatch read;
    std::vector<Work> work;  ///< by tensor
  };

  std::size_t soft_;  ///< index of the tensor of class indices that become shares; kNoTensor: none
  std::vector<std::int32_t> labels_;  ///< the class indices, by sample of the batch
  bool pictures_;
  std::int64_t side_, padding_;
  std::vector<double> erased_;
  bool mix_;
  Shape first_;                        ///< of the first image tensor
  Shape shape_;                        ///< of the last image tensor
  std::int64_t steps_ = 0;             ///< most steps recorded for the backend, of an image
  std::unique_ptr<PicturePool> pool_;  ///< null: pictures are not resized by the backend
  std::deque<PoolTarget> targets_;     ///< by worker
  Tensor resized_;                     ///< of one batch, since batches are made one after another
  ChangeBuffers change_buffers_;       ///< also of one batch
  /// A CPU backend for the loader's threads, since another thread issues work on backend_; null: a
  /// device makes the images
  std::unique_ptr<CpuBackend> cpu_;
  bool by_batch_ = false;  ///< on the CPU: images are processed once the whole batch is read
  std::vector<HostBuffers> host_buffers_;  ///< one, of a whole batch, if by_batch_; else one for
                                           ///< each worker, of one image
};

}  // namespace

std::int64_t ImageGrowth::side(std::int64_t epoch) const {
  if (epoch >= end_epoch) return to;
  if (epoch <= start_epoch) return from;
  const double share =
      static_cast<double>(epoch - start_epoch) / static_cast<double>(end_epoch - start_epoch);
  const double on_line = static_cast<double>(from) + share * static_cast<double>(to - from);
  const std::int64_t rounded =
      multiple * static_cast<std::int64_t>(std::nearbyint(on_line / static_cast<double>(multiple)));
  return std::clamp(rounded, from, to);
}

std::vector<std::int64_t> ImageGrowth::sides() const {
  std::vector<std::int64_t> sides{from};
  for (std::int64_t epoch = start_epoch; epoch <= end_epoch; ++epoch) {
    if (const std::int64_t next = side(epoch); next != sides.back()) sides.push_back(next);
  }
  return sides;
}

std::vector<TensorInfo> ImageCollate::tensors(std::vector<TensorInfo> declared, bool test,
                                              std::int64_t side) const {
  for (TensorInfo& tensor : declared) {
    if (test && test_image && tensor.pixels) tensor.shape = *test_image;
    if (!test && side > 0 && tensor.pixels) tensor.shape = Shape{side, side, tensor.shape.back()};
  }
  return declared;
}

std::unique_ptr<BatchMaker> ImageCollate::maker(const Dataset& dataset,
                                                const BatchMakerSettings& settings,
                                                Backend& backend) const {
  require(is_floating(settings.dtype), "loader", "images cannot be {}", name_of(settings.dtype));
  if (settings.erased.size() > AugmentImages().values.size()) {
    fail(ExitCode::kUsage, "loader",
         "data.augment erases {} rectangles of an image; allowed: at most {}",
         settings.erased.size(), AugmentImages().values.size());
  }
  return std::make_unique<ImageMaker>(dataset, settings, backend, tensors_of(dataset, settings));
}

void ImageCollate::describe(const DatasetInfo& data, ModelDescription& description) const {
  if (pictures) {
    description.resize = pictures->resize;
    description.interpolation =
        interpolation_names()[static_cast<std::size_t>(pictures->interpolation)];
    if (test_image) description.image = *test_image;
  }
  for (const TensorInfo& tensor : data.tensors) {
    if (!tensor.pixels) continue;
    description.pictures = true;
    description.scale = *tensor.pixels;
    break;
  }
}

const ImageCollate& images_of(const DatasetInfo& data) {
  static const ImageCollate none;
  const auto* images = dynamic_cast<const ImageCollate*>(&data.collate());
  return images ? *images : none;
}

const Collate& DatasetInfo::collate() const {
  static const Collate rows;
  static const ImageCollate images;
  if (collated_by) return *collated_by;
  const bool pixels = std::any_of(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
    return tensor.pixels.has_value();
  });
  return pixels ? static_cast<const Collate&>(images) : rows;
}

}  // namespace starling
