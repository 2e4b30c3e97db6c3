#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/data/augment.h"
#include "apps/data/dataset.h"
#include "apps/data/workers.h"
#include "core/backend.h"

namespace starling {

/// With mixing (mixup, cutmix) an image has several classes: the tensor of class indices is
/// replaced by one of class shares.
struct SoftTarget {
  std::string tensor;        ///< int32 scalar of each sample; empty: there is none
  std::int64_t classes = 0;  ///< the replacement is fp32 [classes]
};

/// Settings of a BatchMaker, which is not thread-safe. `dtype`: of images. `fixed_place`: on
/// devices the batches of all slots use the same addresses, one at a time.
struct BatchMakerSettings {
  std::int64_t batch_size = 1, crop_padding = 0;
  std::vector<double> erased;  ///< erased_values() of the augmentations
  std::int64_t steps = 0;      ///< steps_of() the augmentations
  bool mix = false;            ///< images are mixed, which requires full batches
  SoftTarget soft_target;      ///< with `mix`: the tensor of class indices to replace
  bool loss_share = false;     ///< batches have a tensor LossShares::kTensor
  DType dtype = DType::kFloat32;
  std::int64_t side = 0;  ///< of training images, in pixels; 0: as the data set declares them
  Dataset::Split split = Dataset::Split::kTrain;
  bool fixed_place = false;
  int threads = 1;  ///< that read samples, the caller's among them
};

/// Makes batches: reads samples, several at a time, checks class indices, and stacks the samples'
/// tensors. On the CPU fill() does all of it. For other devices fill() writes the samples' bytes to
/// page-locked memory; the thread that issues the backend's work makes the device copy them on a
/// separate stream (upload(), preferably during the computation on another batch) and convert them
/// (make()). Makers that convert some tensors derive from it, and upload parameters with them.
class BatchMaker {
 public:
  /// `read`: the tensors of a sample as the data set gives them; `made`: as batches have them.
  BatchMaker(const Dataset& dataset, const BatchMakerSettings& settings, Backend& backend,
             std::vector<TensorInfo> read, std::vector<TensorInfo> made);
  virtual ~BatchMaker() = default;

  /// A batch on the device, before conversion.
  struct RawBatch {
    Tensor all;                   ///< one block that contains the others
    std::vector<Tensor> tensors;  ///< in the order of DatasetInfo::tensors
    std::vector<Tensor> more;     ///< parts(); unused ones are empty
  };
  /// Memory for one batch. On the CPU only the first member is used.
  struct Slot {
    Batch batch;
    /// Page-locked, with the same layout as device.all
    std::shared_ptr<std::byte> host;
    std::size_t bytes = 0;  ///< written by fill()
    RawBatch device;
    Event free;     ///< end of the work on the slot's previous batch
    Event arrived;  ///< the last upload
    bool uploaded = false;
    double share = 1.0;  ///< LossShares of the next fill()
  };
  Slot make_slot();
  /// Whether the slot's last upload is complete, so that fill() may write to it. Thread-safe.
  bool writable(const Slot& slot) const { return backend_.done(slot.arrived); }
  /// Blocks the host until writable().
  void wait_until_writable(const Slot& slot) const;
  /// Reads `samples` (at most the slot's batch size) into a writable slot. `change`: augmentation
  /// of images; may be empty.
  void fill(Slot& slot, std::span<const std::int64_t> samples, const ImageChange& change);
  /// Starts copying the filled slot to the device, unless already started.
  void upload(Slot& slot) const;
  /// Makes the current stream wait for the upload, which it starts if necessary; with fixed_place
  /// also copies it there.
  void send(Slot& slot) const;
  /// After send(): makes slot.batch. With fixed_place this can be part of a graph.
  virtual void make(Slot&) const {}
  /// All work on the slot's batch has been issued to the current stream: it may be filled again.
  void release(Slot& slot) const { slot.free = backend_.record(); }
  /// To be called before a slot is destroyed: makes the current stream and, for some seconds, the
  /// host wait for its upload. Memory that the device might still read after that is never freed.
  void settle(Slot& slot) const;

 protected:
  struct Part {
    Shape shape;
    DType dtype = DType::kInt32;
    bool there = true;
  };
  /// Memory that is uploaded after the tensors, for a batch of `images`. fill() may leave the end
  /// of the last part unused, which is then not copied.
  virtual std::vector<Part> parts(std::int64_t images) const {
    return (void)images, std::vector<Part>{};
  }
  /// A tensor that make() computes on the device instead of uploading it; null: none.
  virtual const Tensor* made_elsewhere(std::size_t t) const { return (void)t, nullptr; }

  /// A sample during reading, at position `index` of the batch.
  struct Reading {
    Slot& slot;
    std::size_t index;
    std::int64_t sample;
    int worker;
    std::span<std::byte* const> places;  ///< place() of each tensor
    const ImageChange& change;
  };
  /// Host memory of tensor t of all samples.
  std::byte* memory(const Slot& slot, std::size_t t) const {
    return on_host_ ? slot.batch.tensors[t].tensor.raw() : host(slot, slot.device.tensors[t]);
  }
  /// Host memory that a sample's tensor is read into.
  virtual std::byte* place(const Slot& slot, std::size_t index, std::size_t t, int worker) {
    return (void)worker, memory(slot, t) + index * made_[t].bytes();
  }
  virtual void begin(Slot&) {}  ///< before a batch is read
  virtual void read(const Reading& reading) {
    dataset_.read(split_, reading.sample, reading.places);
  }
  virtual void end(Slot&, std::span<const std::int64_t>, const ImageChange&) {
  }  ///< after a batch is read

  /// The tensors of one sample in a batch.
  const std::vector<TensorInfo>& tensors() const { return made_; }
  /// The host address of a part of the slot's memory.
  static std::byte* host(const Slot& slot, const Tensor& part) {
    return slot.host.get() + (part.raw() - slot.device.all.raw());
  }
  /// The uploaded data that the slot's batch is made from: with fixed_place a copy at a fixed
  /// address.
  const RawBatch& raw(const Slot& slot) const { return fixed_.all ? fixed_ : slot.device; }
  /// Allocates memory for the tensors of `images` samples as they are read, and for their parts.
  RawBatch make_raw(Backend& backend, std::int64_t images) const;

  const Dataset& dataset_;
  Dataset::Split split_;
  std::int64_t batch_size_;
  DType dtype_;
  Backend& backend_;
  bool on_host_;  ///< the backend's memory is the host's: fill() makes the batch
  Workers workers_;

 private:
  Batch make_batch(const RawBatch& raw) const;

  std::vector<TensorInfo> read_, made_;
  bool loss_share_;                              ///< made_ ends with LossShares::kTensor
  std::vector<std::vector<std::byte*>> places_;  ///< by worker
  bool fixed_place_;
  RawBatch fixed_;  ///< empty: batches are made from their slot's memory
  Batch fixed_batch_;
};
/// By the data set's collate.
std::unique_ptr<BatchMaker> make_batch_maker(const Dataset& dataset,
                                             const BatchMakerSettings& settings, Backend& backend);

}  // namespace starling
