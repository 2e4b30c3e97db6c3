#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "core/backend.h"
#include "core/error.h"

namespace starling {

namespace {

constexpr std::size_t kMaxInUse = std::size_t{1} << 62;

/// Counts of one meta backend. Storages share them, so that one that outlives its backend still finds them.
struct Counters {
  std::mutex mutex;
  MemoryStats stats;
};

class MetaStorage final : public Storage {
 public:
  MetaStorage(Backend& backend, std::size_t bytes, std::shared_ptr<Counters> counters)
      : Storage(backend, nullptr, bytes), counters_(std::move(counters)) {
    const std::lock_guard lock(counters_->mutex);
    MemoryStats& stats = counters_->stats;
    if (bytes > kMaxInUse - stats.in_use) {
      fail(ExitCode::kMemory, "tensor", "{} bytes beyond {} in use are more than any memory; choose smaller sizes", bytes, stats.in_use);
    }
    ++stats.allocations;
    stats.in_use += bytes;
    stats.peak_in_use = std::max(stats.peak_in_use, stats.in_use);
  }
  ~MetaStorage() override {
    const std::lock_guard lock(counters_->mutex);
    counters_->stats.in_use -= bytes();
  }

 private:
  std::shared_ptr<Counters> counters_;
};

/// Threads trace at the same time through the shared meta backend, so each has its own current stream.
thread_local StreamKind current_stream = StreamKind::kCompute;

class MetaBackend final : public Backend {
 public:
  DeviceType device() const override { return DeviceType::kMeta; }
  std::string description() const override { return "meta (shapes only)"; }

  std::shared_ptr<Storage> allocate(std::size_t bytes) override { return std::make_shared<MetaStorage>(*this, bytes, counters_); }
  MemoryStats memory_stats() const override {
    const std::lock_guard lock(counters_->mutex);
    return counters_->stats;
  }
  void copy(const Tensor&, const Tensor&) override {}
  void copy_from_host(const void*, const Tensor&) override {}
  Event copy_to_host_later(const Tensor& from, void* to) override {
    copy_to_host(from, to);
    return {};
  }
  void copy_to_host(const Tensor& from, void* to) override {
    if (from.bytes() != 0) std::memset(to, 0, from.bytes());
  }
  void fill(const Tensor&, double) override {}

  void set_stream(StreamKind stream) override { current_stream = stream; }
  StreamKind stream() const override { return current_stream; }
  Event record() override { return {++events_}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}

  void conv2d_forward(const Conv2dForward&) override {}
  void conv2d_backward_data(const Conv2dBackwardData&) override {}
  void conv2d_backward_weights(const Conv2dBackwardWeights&) override {}
  void matmul(const Matmul&) override {}
  void sum_rows(const SumRows&) override {}
  void activation_forward(const ActivationForward&) override {}
  void activation_backward(const ActivationBackward&) override {}
  void batch_norm_forward(const BatchNormForward&) override {}
  void batch_norm_backward(const BatchNormBackward&) override {}
  void channel_sums(const ChannelSums&) override {}
  void batch_norm_finish(const BatchNormFinish&) override {}
  void scale_shift(const ScaleShift&) override {}
  void batch_norm_backward_sums(const BatchNormBackwardSums&) override {}
  void batch_norm_backward_apply(const BatchNormBackwardApply&) override {}
  void layer_norm_forward(const LayerNormForward&) override {}
  void layer_norm_backward(const LayerNormBackward&) override {}
  void pool2d_forward(const Pool2dForward&) override {}
  void pool2d_backward(const Pool2dBackward&) override {}
  void global_avg_pool_forward(const GlobalAvgPoolForward&) override {}
  void global_avg_pool_backward(const GlobalAvgPoolBackward&) override {}
  void add(const Add&) override {}
  void subsample_pad_forward(const SubsamplePadForward&) override {}
  void subsample_pad_backward(const SubsamplePadBackward&) override {}
  void flatten_channels_first(const FlattenChannelsFirst&) override {}
  void dropout(const Dropout&) override {}
  void softmax_cross_entropy(const SoftmaxCrossEntropy&) override {}
  void classification_metrics(const ClassificationMetrics&) override {}
  void cast(const Cast&) override {}
  void augment_images(const AugmentImages&) override {}
  void weighted_sum(const WeightedSum&) override {}
  void squared_distance(const SquaredDistance&) override {}
  void gradient_control(const GradientControl&) override {}
  void update(const OptimizerRule&, const UpdateArgs&) override {}

 private:
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::atomic<std::uint64_t> events_{0};
};

}  // namespace

Backend& meta_backend() {
  // Never destroyed: tensors in other static objects may refer to it until the very end.
  static Backend& backend = *new MetaBackend;
  return backend;
}

std::unique_ptr<Backend> make_meta_backend() { return std::make_unique<MetaBackend>(); }

}  // namespace starling
