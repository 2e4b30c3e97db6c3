#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/data/loader.h"
#include "apps/data/workers.h"

namespace starling {

/// Fills batches: reads samples, and makes named tensors of them. On the CPU fill() does it all;
/// for another device it writes the samples' bytes, and what is to be done with them, into
/// page-locked memory. The thread that issues the backend's work has the device copy them from
/// there on a stream of their own (upload(), at best while the device computes on another batch),
/// and make the same numbers of them (make()). So no thread copies a batch.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;

  /// A batch on the device as the data set gives it.
  struct RawBatch {
    Tensor all;                   ///< one block, of which the others are parts
    std::vector<Tensor> tensors;  ///< in the order of DatasetInfo::tensors
    std::vector<Tensor> more;     ///< DeviceRowMaker::parts(); empty ones are not there
  };
  /// Memory for one batch; all but the first member are empty where the backend's memory is the
  /// host's.
  struct Slot {
    Batch batch;
    /// Page-locked; the same parts in the same places as device.all
    std::shared_ptr<std::byte> host;
    std::size_t bytes = 0;  ///< of it that fill() has written
    RawBatch device;
    Event free;     ///< the current stream's work on what the slot held before
    Event arrived;  ///< the last upload
    bool uploaded = false;
    double share = 1.0;  ///< LossShares of what is filled next
  };
  virtual Slot make_slot() = 0;
  /// Whether the device has read what the slot's last upload copies, so that fill() may write
  /// there. Any thread may ask.
  virtual bool writable(const Slot& slot) const { return (void)slot, true; }
  /// The host waits for that.
  virtual void wait_until_writable(const Slot& slot) const { (void)slot; }
  /// Prepares `samples` (at most the slot's batch size); `change` augments their images, or is
  /// empty. The slot is writable.
  virtual void fill(Slot& slot, std::span<const std::int64_t> samples,
                    const ImageChange& change) = 0;
  /// Begins to copy what fill() prepared to the device, unless it has begun.
  virtual void upload(Slot& slot) const = 0;
  /// Sends what fill() prepared to the device, for work on the current stream; with a fixed place
  /// it is copied there.
  virtual void send(Slot& slot) const = 0;
  /// Makes slot.batch of what send() has sent. A graph may do so with a fixed place.
  virtual void make(Slot& slot) const = 0;
  /// The current stream has been given all work on the slot's batch: it may be filled and uploaded
  /// again.
  virtual void release(Slot& slot) const = 0;
  /// Waits for a slot's upload before the slot is destroyed. The current stream does, so that the
  /// memory can be used again there, and so does the host, for some seconds. What the device might
  /// still read then is never freed.
  virtual void settle(Slot& slot) const = 0;
};

/// Settings of a BatchMaker. One thread at a time may use it. `dtype` is what images become. With
/// `fixed_place` a device makes the batches of all slots from the same memory in the same memory,
/// one at a time.
struct BatchMakerSettings {
  std::int64_t batch_size = 1, crop_padding = 0;
  std::vector<double> erased;  ///< erased_values() of the augmentations
  std::int64_t steps = 0;      ///< steps_of() the augmentations
  bool mix = false;            ///< batches are mixed, and are full; then
  SoftTarget soft_target;      ///< this tensor's class numbers become shares
  bool loss_share = false;     ///< batches have a tensor LossShares::kTensor
  DType dtype = DType::kFloat32;
  std::int64_t side = 0;  ///< of training images, in pixels; 0: as the data set declares them
  Dataset::Split split = Dataset::Split::kTrain;
  bool fixed_place = false;
  int threads = 1;  ///< that read samples, the caller's among them
};
/// By the data set's collate.
std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset,
                                             const BatchMakerSettings& settings, Backend& backend);

/// The samples' tensors, one after another, in memory of the host's; several samples are read at a
/// time, and numbers of classes are checked. Collates that make something else of some tensors
/// derive from it.
class RowMaker : public BatchMaker {
 public:
  /// `read`: of a sample as it is read; `made`: as batches hold it.
  RowMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend,
           std::vector<TensorInfo> read, std::vector<TensorInfo> made);

  Slot make_slot() override;
  void fill(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change) final;
  void upload(Slot&) const override {}
  void send(Slot&) const override {}
  void make(Slot&) const override {}
  void release(Slot&) const override {}
  void settle(Slot&) const override {}

 protected:
  /// One sample that is being read: the batch's number `index`.
  struct Reading {
    Slot& slot;
    std::size_t index;
    std::int64_t sample;
    int worker;
    std::span<std::byte* const> places;  ///< place() of each tensor
    const ImageChange& change;
  };
  /// Where all samples' tensor t goes.
  virtual std::byte* memory(const Slot& slot, std::size_t t) const {
    return slot.batch.tensors[t].tensor.raw();
  }
  /// Where it is read to.
  virtual std::byte* place(const Slot& slot, std::size_t index, std::size_t t, int worker) {
    return (void)worker, memory(slot, t) + index * bytes(t);
  }
  virtual void begin(Slot&) {}  ///< before a batch is read
  virtual void read(const Reading& reading) {
    dataset_.read(split_, reading.sample, reading.places);
  }
  virtual void end(Slot&, std::span<const std::int64_t>, const ImageChange&) {}  ///< and after it

  /// Of a sample in a batch
  const std::vector<TensorInfo>& tensors() const { return made_; }
  std::size_t bytes(std::size_t t) const { return bytes_of(made_[t]); }
  static std::size_t bytes_of(const TensorInfo& tensor) {
    return static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
  }

  const Dataset& dataset_;
  Dataset::Split split_;
  std::int64_t batch_size_;
  DType dtype_;
  Backend& backend_;
  Workers workers_;

 private:
  std::vector<TensorInfo> read_, made_;
  bool loss_share_;                              ///< it is the last of made_
  std::vector<std::vector<std::byte*>> places_;  ///< by worker
};

/// The same in a device's memory.
class DeviceRowMaker : public RowMaker {
 public:
  DeviceRowMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend,
                 std::vector<TensorInfo> read, std::vector<TensorInfo> made)
      : RowMaker(dataset, settings, backend, std::move(read), std::move(made)),
        fixed_place_(settings.fixed_place) {}

  Slot make_slot() final;
  bool writable(const Slot& slot) const final { return backend_.done(slot.arrived); }
  void wait_until_writable(const Slot& slot) const final;
  void upload(Slot& slot) const final;
  void send(Slot& slot) const final;
  void release(Slot& slot) const final { slot.free = backend_.record(); }
  void settle(Slot& slot) const final;

 protected:
  struct Part {
    Shape shape;
    DType dtype = DType::kInt32;
    bool there = true;
  };
  /// What is uploaded behind the tensors; of the last fill() may leave some of its end out.
  virtual std::vector<Part> parts() const { return {}; }
  /// A tensor that make() makes, and is not uploaded.
  virtual const Tensor* made_elsewhere(std::size_t t) const { return (void)t, nullptr; }

  std::byte* memory(const Slot& slot, std::size_t t) const final {
    return host(slot, slot.device.tensors[t]);
  }
  static std::byte* host(const Slot& slot, const Tensor& part) {
    return slot.host.get() + (part.raw() - slot.device.all.raw());
  }
  /// What the slot's batch is made of: its own, or what lies in the fixed place.
  const RawBatch& raw(const Slot& slot) const { return fixed_.all ? fixed_ : slot.device; }

 private:
  Batch make_batch(const RawBatch& raw) const;
  RawBatch make_raw() const;

  bool fixed_place_;
  RawBatch fixed_;  ///< empty: each slot's batch is made in a place of its own
  Batch fixed_batch_;
};

}  // namespace starling
