#include "apps/data/batch_maker.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "apps/data/loss_shares.h"
#include "core/error.h"
#include "core/running_clock.h"
#include "layers/functions.h"

namespace starling {
namespace {

std::string sample_text(Dataset::Split split, std::int64_t sample) {
  return fmt::format("{} sample {}", split == Dataset::Split::kTrain ? "training" : "test", sample);
}

void check_class_numbers(const TensorInfo& tensor, Dataset::Split split, std::int64_t sample,
                         const std::byte* values) {
  for (std::int64_t i = 0; i < tensor.shape.elements(); ++i) {
    std::int32_t value = 0;
    std::memcpy(&value, values + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    if (value >= 0 && value < tensor.classes) continue;
    if (value == functions::kIgnoreIndex && tensor.name == "targets") continue;
    fail(ExitCode::kUsage, "data", "{} has {} {}, the classes are 0 to {}",
         sample_text(split, sample), tensor.name, value, tensor.classes - 1);
  }
}

/// The prefix of a slot's memory that fill() has written.
Tensor filled(const BatchMaker::Slot& slot, const Tensor& all) {
  return slot.bytes == all.bytes() ? all
                                   : all.slice(0, Shape{static_cast<std::int64_t>(slot.bytes)});
}

}  // namespace

BatchMaker::BatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend,
                       std::vector<TensorInfo> read, std::vector<TensorInfo> made)
    : dataset_(dataset),
      split_(settings.split),
      batch_size_(settings.batch_size),
      dtype_(settings.dtype),
      backend_(backend),
      on_host_(backend.device() == DeviceType::kCpu),
      workers_(settings.threads),
      read_(std::move(read)),
      made_(std::move(made)),
      loss_share_(settings.loss_share),
      places_(static_cast<std::size_t>(workers_.threads()), std::vector<std::byte*>(read_.size())),
      fixed_place_(settings.fixed_place) {
  if (loss_share_)
    made_.push_back({.name = LossShares::kTensor, .shape = Shape{}, .dtype = DType::kFloat64});
}

void BatchMaker::fill(Slot& slot, std::span<const std::int64_t> samples,
                      const ImageChange& change) {
  slot.uploaded = false;
  begin(slot);
  dataset_.will_read(split_, samples);
  const auto read_one = [&](std::size_t i, int worker) {
    std::vector<std::byte*>& places = places_[static_cast<std::size_t>(worker)];
    for (std::size_t t = 0; t < read_.size(); ++t) places[t] = place(slot, i, t, worker);
    read({slot, i, samples[i], worker, places, change});
    for (std::size_t t = 0; t < read_.size(); ++t) {
      if (read_[t].classes > 0 && read_[t].dtype == DType::kInt32)
        check_class_numbers(read_[t], split_, samples[i], places[t]);
    }
  };
  workers_.run(std::ssize(samples), [&](std::int64_t item, int worker) {
    const auto i = static_cast<std::size_t>(item);
    named(
        "data", [&] { return sample_text(split_, samples[i]); }, [&] { read_one(i, worker); });
  });
  end(slot, samples, change);
  for (std::size_t i = 0; loss_share_ && i < samples.size(); ++i)
    std::memcpy(memory(slot, made_.size() - 1) + i * sizeof slot.share, &slot.share,
                sizeof slot.share);
  slot.batch.samples = std::ssize(samples);
}

BatchMaker::Slot BatchMaker::make_slot() {
  Slot slot;
  if (on_host_) {
    slot.batch = empty_batch(made_, backend_, batch_size_, dtype_);
    return slot;
  }
  if (fixed_place_ && !fixed_.all) {
    fixed_ = make_raw(backend_, batch_size_);
    fixed_batch_ = make_batch(fixed_);
  }
  slot.device = make_raw(backend_, batch_size_);
  slot.batch = fixed_.all ? fixed_batch_ : make_batch(slot.device);
  const std::size_t all = slot.bytes = slot.device.all.bytes();
  slot.host = backend_.allocate_host(all);
  // gaps between the parts, and the end of a short batch, are copied too
  std::memset(slot.host.get(), 0, all);
  release(slot);  // the current stream may have used this memory before
  return slot;
}

void BatchMaker::wait_until_writable(const Slot& slot) const {
  if (!writable(slot)) backend_.synchronize(slot.arrived);
}

void BatchMaker::upload(Slot& slot) const {
  if (on_host_ || slot.uploaded) return;
  const StreamScope scope(backend_, StreamKind::kUpload);
  backend_.wait(slot.free);
  backend_.copy_from_pinned(slot.host.get(), filled(slot, slot.device.all));
  slot.arrived = backend_.record();
  slot.uploaded = true;
}

void BatchMaker::send(Slot& slot) const {
  if (on_host_) return;
  upload(slot);
  backend_.wait(slot.arrived);
  if (fixed_.all) backend_.copy(filled(slot, slot.device.all), filled(slot, fixed_.all));
}

void BatchMaker::settle(Slot& slot) const {
  if (on_host_) return;
  // Waiting longer means that the device itself waits for a lost rank.
  constexpr std::chrono::seconds kSettle{5};
  const auto leak = [&] {
    static_cast<void>(new std::shared_ptr<std::byte>(std::move(slot.host)));
  };
  try {
    backend_.wait(slot.arrived);
    const auto limit = RunningClock::now() + kSettle;
    while (!writable(slot)) {
      if (RunningClock::now() > limit) return leak();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (...) {
    leak();
    throw;
  }
}

/// The batch of a slot: images are converted tensors, all others are views of `raw`.
Batch BatchMaker::make_batch(const RawBatch& raw) const {
  Batch batch{.samples = batch_size_, .format = dtype_};
  for (std::size_t t = 0; t < raw.tensors.size(); ++t) {
    const TensorInfo& tensor = tensors()[t];
    batch.tensors.push_back({tensor.name, tensor.pixels
                                              ? Tensor(backend_, raw.tensors[t].shape(), dtype_)
                                              : raw.tensors[t]});
  }
  return batch;
}

BatchMaker::RawBatch BatchMaker::make_raw(Backend& backend, std::int64_t images) const {
  constexpr std::size_t kAlignment = 512;  // the alignment of separate tensors
  std::vector<Part> all;
  for (std::size_t t = 0; t < tensors().size(); ++t)
    all.push_back({tensors()[t].shape.with_batch(images), tensors()[t].dtype, !made_elsewhere(t)});
  for (const Part& part : parts(images)) all.push_back(part);
  std::size_t end = 0;
  std::vector<std::size_t> places;
  for (const Part& part : all) {
    places.push_back((end + kAlignment - 1) / kAlignment * kAlignment);
    end = places.back();
    if (part.there) end += static_cast<std::size_t>(part.shape.elements()) * size_of(part.dtype);
  }
  RawBatch raw;
  raw.all = Tensor(backend, Shape{static_cast<std::int64_t>(end)}, DType::kUInt8);
  for (std::size_t k = 0; k < all.size(); ++k) {
    const bool own = k < tensors().size();
    Tensor part = own && made_elsewhere(k) ? *made_elsewhere(k) : Tensor();
    if (all[k].there) part = Tensor(raw.all.storage(), places[k], all[k].shape, all[k].dtype);
    (own ? raw.tensors : raw.more).push_back(std::move(part));
  }
  return raw;
}

std::unique_ptr<BatchMaker> Collate::maker(const Dataset& dataset,
                                           const BatchMakerSettings& settings,
                                           Backend& backend) const {
  const std::vector<TensorInfo> rows = dataset.info().tensors;
  return std::make_unique<BatchMaker>(dataset, settings, backend, rows, rows);
}

std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset,
                                             const BatchMakerSettings& settings, Backend& backend) {
  return dataset.info().collate().maker(dataset, settings, backend);
}

}  // namespace starling
