#include "apps/data/batch_maker.h"

#include "apps/data/image_table.h"

namespace starling {
namespace {

template <class T>
class TypedBatchMaker final : public BatchMaker {
 public:
  TypedBatchMaker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend)
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
    if (backend_.device() != DeviceType::kCpu) {
      slot.host_images.resize(slot.batch.images.bytes());
      slot.host_labels.resize(static_cast<std::size_t>(batch_size_));
    }
    return slot;
  }

  void fill(Slot& slot, Dataset::Split split, std::span<const std::int64_t> samples,
            const std::function<Augmentation(std::int64_t)>& augment) override {
    const bool staged = !slot.host_labels.empty();
    T* images = staged ? reinterpret_cast<T*>(slot.host_images.data()) : slot.batch.images.template data<T>();
    std::int32_t* labels = staged ? slot.host_labels.data() : slot.batch.labels.template data<std::int32_t>();
    const auto centre = static_cast<std::int32_t>(padding_);
    for (const std::int64_t sample : samples) {
      const std::int64_t label = dataset_.label(split, sample);
      if (label < 0 || label >= info_.classes) {
        fail(ExitCode::kUsage, "data", "{} sample {} has label {}, the classes are 0 to {}",
             split == Dataset::Split::kTrain ? "training" : "test", sample, label, info_.classes - 1);
      }
      *labels++ = static_cast<std::int32_t>(label);
      dataset_.image(split, sample, raw_.data());
      table_.write(raw_.data(), augment ? augment(sample) : Augmentation{centre, centre, 0}, images);
      images += raw_.size();
    }
    slot.batch.samples = static_cast<std::int64_t>(samples.size());
  }

  void send(Slot& slot) const override {
    if (slot.host_labels.empty()) return;
    backend_.copy_from_host(slot.host_images.data(), slot.batch.images);
    backend_.copy_from_host(slot.host_labels.data(), slot.batch.labels);
  }

 private:
  const Dataset& dataset_;
  DatasetInfo info_;
  std::int64_t batch_size_, padding_;
  Backend& backend_;
  ImageTable<T> table_;
  std::vector<std::uint8_t> raw_;  ///< one image as the data set gives it
};

}  // namespace

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset, std::int64_t batch_size, std::int64_t crop_padding, Backend& backend,
                                             DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return std::make_unique<TypedBatchMaker<float>>(dataset, batch_size, crop_padding, backend);
    case DType::kFloat64: return std::make_unique<TypedBatchMaker<double>>(dataset, batch_size, crop_padding, backend);
    case DType::kBFloat16: return std::make_unique<TypedBatchMaker<BFloat16>>(dataset, batch_size, crop_padding, backend);
    case DType::kFloat16: return std::make_unique<TypedBatchMaker<Float16>>(dataset, batch_size, crop_padding, backend);
    default: break;
  }
  fail(ExitCode::kInternal, "loader", "images cannot be {}", name_of(dtype));
}

}  // namespace starling
