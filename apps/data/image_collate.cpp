#include "apps/data/image_collate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include "apps/data/batch_maker.h"
#include "apps/data/image_table.h"
#include "apps/data/picture_pool.h"
#include "apps/inference/description.h"
#include "core/error.h"
#include "core/operations/pictures.h"

namespace starling {
namespace {

constexpr std::size_t kNoTensor = std::numeric_limits<std::size_t>::max();

/// What images on the host and on a device have in common: how a sample is read and augmented, and
/// its share of a mixed target.
class ImageReader {
 public:
  ImageReader(const Dataset& dataset, const BatchMakerSettings& settings)
      : dataset_(dataset),
        read_(images_of(dataset.info())
                  .tensors(dataset.info().tensors, settings.split == Dataset::Split::kTest,
                           settings.side)),
        made_(read_),
        pictures_(images_of(dataset.info()).pictures.has_value()),
        side_(settings.side),
        split_(settings.split),
        centre_(static_cast<std::int32_t>(settings.crop_padding)),
        boxes_each_(settings.erased.size()),
        boxes_(boxes_each_ * static_cast<std::size_t>(settings.batch_size)) {
    for (std::size_t t = 0; t < read_.size(); ++t) {
      if (read_[t].pixels && first_.rank() == 0) first_ = read_[t].shape;
      if (settings.soft_target.tensor.empty() || read_[t].name != settings.soft_target.tensor)
        continue;
      soft_ = t;
      labels_.resize(static_cast<std::size_t>(settings.batch_size));
      made_[t] = {.name = read_[t].name,
                  .shape = Shape{settings.soft_target.classes},
                  .dtype = DType::kFloat32};
    }
  }
  /// Of one sample: as it is read, and as a batch holds it
  const std::vector<TensorInfo>& read_tensors() const { return read_; }
  const std::vector<TensorInfo>& made_tensors() const { return made_; }
  bool pictures() const { return pictures_; }

  /// Where the soft target's class number of sample i is read to; null: it is another tensor.
  std::byte* label_place(std::size_t i, std::size_t t) {
    return t == soft_ ? reinterpret_cast<std::byte*>(&labels_[i]) : nullptr;
  }
  /// What read() has found to erase of image i.
  std::span<ErasedBox> boxes_of(std::size_t i) {
    return std::span(boxes_).subspan(i * boxes_each_, boxes_each_);
  }
  BatchMix mix(const ImageChange& change, std::int64_t first_sample) const {
    return change.mix(first_sample, first_);
  }

  /// Reads sample i, and calls window(tensor, bytes, window to take) for each of its images. Its
  /// bytes are changed by then, but for what `later` has room for. A picture is not resized, where
  /// `pool` takes its pixels. The soft target is left to write_shares().
  template <class Window>
  void read(std::size_t i, std::int64_t sample, std::span<std::byte* const> places,
            const ImageChange& change, std::span<PixelStep> later, PoolTarget* pool,
            const Window& window) {
    bool cut = false;
    if (pictures_) {
      const auto choose = [&](const PictureSize& size) {
        auto part = change.part(change.drawn(i, sample), size);
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
      if (!tensor.pixels) continue;
      const std::span<std::uint8_t> bytes(
          pool ? pool->pixels() : reinterpret_cast<std::uint8_t*>(places[t]),
          static_cast<std::size_t>(tensor.shape.elements()));
      std::function<void()> resize;
      if (pool) resize = [pool] { pool->resize(); };
      // Unaugmented: the window in the middle of the padding, which is the image as it is.
      if (!change) std::fill(later.begin(), later.end(), PixelStep{});
      const Augmentation taken = change ? change(change.drawn(i, sample), bytes, tensor.shape, cut,
                                                 boxes_of(i), later, std::move(resize))
                                        : Augmentation{centre_, centre_, 0};
      window(t, bytes.data(), taken);
    }
  }

  std::size_t soft_tensor() const { return soft_; }  ///< kNoTensor: there is none
  /// After read() of so many samples: a row of shares for each, of its own class and of its
  /// neighbour's.
  void write_shares(const BatchMix& mix, std::size_t samples, float* out) const {
    const auto classes = static_cast<std::size_t>(made_[soft_].shape.elements());
    const float own = mix.share(first_);
    std::fill_n(out, samples * classes, 0.0F);
    for (std::size_t i = 0; i < samples; ++i) {
      out[i * classes + static_cast<std::size_t>(labels_[i])] += own;
      out[i * classes + static_cast<std::size_t>(labels_[i > 0 ? i - 1 : samples - 1])] +=
          1.0F - own;
    }
  }

 private:
  const Dataset& dataset_;
  std::vector<TensorInfo> read_, made_;
  bool pictures_;
  std::int64_t side_;
  Dataset::Split split_;
  std::int32_t centre_;
  std::size_t boxes_each_;
  std::vector<ErasedBox> boxes_;  ///< by sample of the batch
  Shape first_;                   ///< of the data's first image
  std::size_t soft_ = kNoTensor;
  std::vector<std::int32_t> labels_;  ///< by sample of the batch
};

/// Its member is there before a maker's tensors are.
struct HasImageReader {
  HasImageReader(const Dataset& dataset, const BatchMakerSettings& settings)
      : image_(dataset, settings) {}
  ImageReader image_;
};

template <class T>
class HostImageMaker final : HasImageReader, public RowMaker {
 public:
  HostImageMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : HasImageReader(dataset, settings),
        RowMaker(dataset, settings, backend, image_.read_tensors(), image_.made_tensors()),
        mix_(settings.mix),
        windows_(static_cast<std::size_t>(settings.batch_size)) {
    const auto workers = static_cast<std::size_t>(workers_.threads()), rows = mix_ ? workers : 0;
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      const TensorInfo& tensor = tensors()[t];
      if (!tensor.pixels) continue;
      const std::vector<std::uint8_t> raw(bytes(t));
      const std::vector<Wide> row(static_cast<std::size_t>(tensor.shape[1] * tensor.shape[2]));
      images_.emplace(
          t, HostImage{{tensor.shape, *tensor.pixels, settings.crop_padding, settings.erased},
                       {tensor.shape, *tensor.pixels, settings.crop_padding, settings.erased},
                       {mix_ ? static_cast<std::size_t>(batch_size_) : workers, raw},
                       {rows, std::vector<T>(row.size())},
                       {rows, {row, row}}});
    }
  }

 private:
  std::byte* place(const Slot& slot, std::size_t i, std::size_t t, int worker) override {
    if (std::byte* label = image_.label_place(i, t)) return label;
    const auto image = images_.find(t);
    if (image == images_.end()) return RowMaker::place(slot, i, t, worker);
    return reinterpret_cast<std::byte*>(
        image->second.raw[mix_ ? i : static_cast<std::size_t>(worker)].data());
  }

  void read(const Reading& reading) override {
    const std::size_t i = reading.index;
    image_.read(i, reading.sample, reading.places, reading.change, {}, nullptr,
                [&](std::size_t t, const std::uint8_t* bytes, const Augmentation& window) {
                  windows_[i] = window;
                  if (!mix_)
                    images_.at(t).table.write(bytes, window, image_.boxes_of(i),
                                              numbers(reading.slot, i, t));
                });
  }

  void end(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    if (!mix_) return;
    const BatchMix mix = image_.mix(change, change.drawn(0, samples.front()));
    for (auto& [t, image] : images_) {
      workers_.run(static_cast<std::int64_t>(samples.size()), [&, t = t, &image = image](
                                                                  std::int64_t item, int worker) {
        const auto i = static_cast<std::size_t>(item);
        write_mixed(image, tensors()[t].shape, mix, i, samples.size(), worker, numbers(slot, i, t));
      });
    }
    if (const std::size_t soft = image_.soft_tensor(); soft != kNoTensor)
      image_.write_shares(mix, samples.size(), reinterpret_cast<float*>(memory(slot, soft)));
  }

  using Wide = std::conditional_t<sizeof(T) == 8, double, float>;
  struct HostImage {
    ImageTable<T> table;
    ImageTable<Wide> wide;  ///< for mixing, before numbers are rounded
    /// By worker, for mixing by sample: one image as the data set gives it
    std::vector<std::vector<std::uint8_t>> raw;
    std::vector<std::vector<T>> row;                     ///< by worker, for mixing
    std::vector<std::array<std::vector<Wide>, 2>> rows;  ///< by worker, for mixing
  };

  /// Where image i's are: as many as it has bytes.
  T* numbers(const Slot& slot, std::size_t i, std::size_t t) const {
    return reinterpret_cast<T*>(memory(slot, t)) + i * bytes(t);
  }

  /// Image i of so many, mixed with the one before.
  void write_mixed(HostImage& image, const Shape& shape, const BatchMix& mix, std::size_t i,
                   std::size_t samples, int worker, T* out) {
    const std::size_t other = i > 0 ? i - 1 : samples - 1;
    const std::int64_t width = shape[1], channels = shape[2];
    auto& rows = image.rows[static_cast<std::size_t>(worker)];
    std::vector<Wide>&own = rows[0], &neighbour = rows[1];
    const Wide share = static_cast<Wide>(mix.own) / static_cast<Wide>(math::kWholeShare);
    for (std::int64_t y = 0; y < shape[0]; ++y, out += width * channels) {
      const bool through = y >= mix.top && y < mix.bottom;
      if (share == Wide(1)) {
        image.table.write_row(image.raw[i].data(), windows_[i], image_.boxes_of(i), y, out);
      } else {
        image.wide.write_row(image.raw[i].data(), windows_[i], image_.boxes_of(i), y, own.data());
        image.wide.write_row(image.raw[other].data(), windows_[other], image_.boxes_of(other), y,
                             neighbour.data());
        for (std::size_t k = 0; k < own.size(); ++k)
          out[k] = T(math::mixed_pixel(share, own[k], neighbour[k]));
      }
      if (!through) continue;
      std::vector<T>& row = image.row[static_cast<std::size_t>(worker)];
      image.table.write_row(image.raw[other].data(), windows_[other], image_.boxes_of(other), y,
                            row.data());
      std::copy(row.begin() + mix.left * channels, row.begin() + mix.right * channels,
                out + mix.left * channels);
    }
  }

  bool mix_;
  std::vector<Augmentation> windows_;        ///< by sample of the batch
  std::map<std::size_t, HostImage> images_;  ///< by tensor
};

/// The device resizes pictures, changes colours and shapes, crops, flips, normalises, erases, mixes
/// and casts; a byte a number crosses the bus, or the pixels of each picture's part.
class DeviceImageMaker final : HasImageReader, public DeviceRowMaker {
  using enum ImageCollate::Part;

 public:
  DeviceImageMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend)
      : HasImageReader(dataset, settings),
        DeviceRowMaker(dataset, settings, backend, image_.read_tensors(), image_.made_tensors()),
        padding_(settings.crop_padding),
        erased_(settings.erased),
        mix_(settings.mix) {
    std::int64_t images = 0;
    for (const TensorInfo& tensor : tensors()) {
      if (!tensor.pixels) continue;
      ++images;
      shape_ = tensor.shape;
    }
    if (images == 1) steps_ = settings.steps;  // places of steps are those of one image
    const Shape batch = shape_.with_batch(batch_size_);
    if (images == 1 && image_.pictures() && shape_[2] == 3) {
      pool_ = std::make_unique<PicturePool>(shape_.elements(), batch_size_);
      for (int worker = 0; worker < workers_.threads(); ++worker)
        targets_.emplace_back(*pool_, shape_);
      resized_ = Tensor(backend, batch, DType::kUInt8);
    }
    if (steps_ > 0) {
      changed_ = Tensor(backend, batch, DType::kUInt8);
      scratch_ = Tensor(backend, batch, DType::kUInt8);
    }
  }

  void make(Slot& slot) const override {
    const RawBatch& from = raw(slot);
    for (std::size_t t = 0; t < from.tensors.size(); ++t) {
      const TensorInfo& tensor = tensors()[t];
      if (!tensor.pixels) continue;
      if (pool_)
        backend_.resize_pictures({.x = from.more[kPool], .parts = from.more[kCuts], .y = resized_});
      if (steps_ > 0)
        backend_.change_pixels(
            {.x = from.tensors[t], .steps = from.more[kSteps], .scratch = scratch_, .y = changed_});
      AugmentImages args{.x = steps_ > 0 ? changed_ : from.tensors[t],
                         .params = from.more[kWindows],
                         .y = slot.batch.tensors[t].tensor,
                         .crop_padding = padding_,
                         .boxes = from.more[kBoxes],
                         .mix = from.more[kMix]};
      std::copy(erased_.begin(), erased_.end(), args.values.begin());
      for (std::size_t c = 0;
           c < std::min(args.mean.size(), static_cast<std::size_t>(tensor.shape[2])); ++c) {
        args.mean[c] = tensor.pixels->mean[c];
        args.std[c] = tensor.pixels->std[c];
      }
      backend_.augment_images(args);
    }
  }

 private:
  std::vector<Part> parts() const override {
    const auto erased = static_cast<std::int64_t>(erased_.size());
    return {{Shape{batch_size_, 3}},
            {Shape{batch_size_, erased, 4}, DType::kInt32, erased > 0},
            {Shape{5}, DType::kInt32, mix_},
            {Shape{batch_size_, steps_, kPixelStepNumbers}, DType::kInt32, steps_ > 0},
            {Shape{batch_size_, kCutPictureNumbers}, DType::kInt32, pool_ != nullptr},
            {Shape{pool_ ? pool_->bytes() : 0}, DType::kUInt8, pool_ != nullptr}};
  }
  const Tensor* made_elsewhere(std::size_t t) const override {
    return pool_ && tensors()[t].pixels ? &resized_ : nullptr;
  }

  std::byte* place(const Slot& slot, std::size_t i, std::size_t t, int worker) override {
    if (std::byte* label = image_.label_place(i, t)) return label;
    if (made_elsewhere(t)) return targets_[static_cast<std::size_t>(worker)].image();
    return DeviceRowMaker::place(slot, i, t, worker);
  }

  void begin(Slot& slot) override {
    if (pool_) pool_->restart(part<std::uint8_t>(slot, kPool));
  }

  void read(const Reading& reading) override {
    const Slot& slot = reading.slot;
    const std::size_t i = reading.index, most = static_cast<std::size_t>(steps_);
    std::span<PixelStep> later;
    if (most > 0) later = std::span(part<PixelStep>(slot, kSteps) + i * most, most);
    PoolTarget* target = pool_ ? &targets_[static_cast<std::size_t>(reading.worker)] : nullptr;
    image_.read(
        i, reading.sample, reading.places, reading.change, later, target,
        [&](std::size_t, const std::uint8_t*, const Augmentation& window) {
          if (target) part<CutPicture>(slot, kCuts)[i] = target->cut;
          const std::array<std::int32_t, 3> row{window.offset_y, window.offset_x, window.flip};
          std::memcpy(part<std::int32_t>(slot, kWindows) + i * row.size(), row.data(), sizeof row);
          const std::span<const ErasedBox> boxes = image_.boxes_of(i);
          if (!boxes.empty())
            std::copy(boxes.begin(), boxes.end(), part<ErasedBox>(slot, kBoxes) + i * boxes.size());
        });
  }

  void end(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) override {
    if (pool_) {
      // What a short batch leaves out is made of whatever lies there.
      CutPicture* cuts = part<CutPicture>(slot, kCuts);
      std::fill(cuts + samples.size(), cuts + batch_size_, CutPicture::whole(shape_[0], shape_[1]));
      slot.bytes = static_cast<std::size_t>(slot.device.more[kPool].raw() - slot.device.all.raw()) +
                   static_cast<std::size_t>(pool_->used());
    }
    if (!mix_) return;
    const BatchMix mix = image_.mix(change, change.drawn(0, samples.front()));
    std::memcpy(part<BatchMix>(slot, kMix), &mix, sizeof mix);
    if (const std::size_t soft = image_.soft_tensor(); soft != kNoTensor)
      image_.write_shares(mix, samples.size(), reinterpret_cast<float*>(memory(slot, soft)));
  }

  template <class T>
  T* part(const Slot& slot, ImageCollate::Part which) const {
    return reinterpret_cast<T*>(host(slot, slot.device.more[which]));
  }

  std::int64_t padding_;
  std::vector<double> erased_;
  bool mix_;
  Shape shape_;                         ///< of the image; of several, the last
  std::int64_t steps_ = 0;              ///< left to the device, at most, of an image
  std::unique_ptr<PicturePool> pool_;   ///< null: images have the data set's size
  std::deque<PoolTarget> targets_;      ///< by worker
  Tensor resized_, changed_, scratch_;  ///< of one batch: batches are made one after another
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
  if (backend.device() != DeviceType::kCpu)
    return std::make_unique<DeviceImageMaker>(dataset, settings, backend);
  switch (settings.dtype) {
    case DType::kFloat32:
      return std::make_unique<HostImageMaker<float>>(dataset, settings, backend);
    case DType::kFloat64:
      return std::make_unique<HostImageMaker<double>>(dataset, settings, backend);
    case DType::kBFloat16:
      return std::make_unique<HostImageMaker<BFloat16>>(dataset, settings, backend);
    case DType::kFloat16:
      return std::make_unique<HostImageMaker<Float16>>(dataset, settings, backend);
    default: break;
  }
  fail(ExitCode::kInternal, "loader", "images cannot be {}", name_of(settings.dtype));
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
